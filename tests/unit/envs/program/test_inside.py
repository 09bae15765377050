"""Test which process is at the other end of a connection, and that a process that is not known may not ask."""

import socket
import subprocess
import sys

import pytest

from verl_agent.envs.program.inside import FirstProcess, connected_process

CONNECTS = """
import socket, sys
port, own = map(int, sys.argv[1:])
client = socket.create_connection(("127.0.0.1", own), source_address=("127.0.0.2", port))
print("connected", flush=True)
sys.stdin.read()
"""
"""Program that connects from a second address of this machine, by a port that another process uses."""


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_a_process_with_the_agents_port_on_another_address_is_told_apart(server):
    own, first = server.getsockname(), FirstProcess()
    with socket.create_connection(own) as client:
        agent = client.getsockname()
        assert first.allows(agent, own)
        command = [sys.executable, "-c", CONNECTS, str(agent[1]), str(own[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tool:
            assert tool.stdout is not None and tool.stdout.readline() == b"connected\n"
            other = ("127.0.0.2", agent[1])
            assert connected_process(other, own) == tool.pid
            assert (first.allows(other, own), first.allows(agent, own)) == (False, True)
            tool.communicate()


def test_a_process_that_is_not_known_may_not_ask(server):
    own, first = server.getsockname(), FirstProcess()
    assert not first.allows(("127.0.0.1", 1), own)
    with socket.create_connection(own) as client:
        assert first.allows(client.getsockname(), own)


def test_a_client_with_a_socket_of_ipv6_is_found(server):
    own, first = server.getsockname(), FirstProcess()
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", own[1]))
        assert first.allows(("127.0.0.1", client.getsockname()[1]), own)
