#!/usr/bin/env bash
# Follow the README in a new Debian, as a person would: `make test-fresh`.
#   tests/fresh.sh [SUITE [VARIANT...]]    SUITE: bookworm (Debian 12), trixie (13), forky (testing; for `light` alone)
# Variants:
#   bare      `make quickstart` names all that is missing and one command, within ten seconds and without a download
#   packages  after that very command: the README's commands
#   user      the same as a user without root, who gets nothing installed: `make ... ROOT=no`
#   light     what needs no verl, with the Debian's own Python: play, evaluate, view
# SHORT=yes replaces the README's commands by setup, doctor and one training step. FRESH_DIR is a folder that keeps the
# last root.
# It needs root, debootstrap, a mirror of Debian and the package index that pip is configured with here.
# CI does not run it: the short form takes ten minutes beside other work, and CI, which follows the same commands in a
# new checkout as a new user without root, would take more than 40.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf '%s\n' "$*" >&2; exit 1; }
[[ $(id -u) == 0 ]] || fail "tests/fresh.sh builds roots with debootstrap, which needs root."
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"

suite=${1:-bookworm}
shift || true
[[ $# -gt 0 ]] || set -- bare packages user light
place=${FRESH_DIR:-$(mktemp -d)}
[[ -n ${FRESH_DIR:-} ]] || trap 'rm -rf --one-file-system "$place"' EXIT
base=$place/base-$suite root=$place/root-$suite
pip=(python3 -m pip --disable-pip-version-check)

# Copy pip's configuration of this machine into the root, and list the folders of package indexes that it names.
configure_pip() {
    local settings path
    settings=$("${pip[@]}" config list | sed -nE "s/^[a-z:]+\\.([a-z-]+)='(.*)'$/\\1 = \\2/p" | awk '!seen[$1]++')
    printf '[global]\n%s\n' "$settings" >"$root/etc/pip.conf"
    { grep -oE '(file://)?/[^ ]+' <<<"$settings" || true; } | while read -r path; do
        if [[ -f $path ]]; then install -D -m 644 "$path" "$root$path"
        elif [[ -d $path ]]; then echo "$path"
        elif [[ $path == file://* ]]; then dirname "${path#file://}"; fi # its pages link to files beside it
    done | sort -u >"$place/folders"
}

build() { # a new root with what a minimal Debian has, git, make and python3
    [[ -d $base ]] || debootstrap --variant=minbase --include=ca-certificates,git,make,python3 "$suite" "$base" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" /usr/share/debootstrap/scripts/sid >"$place/$suite.log" 2>&1 \
        || fail "debootstrap failed, see $place/$suite.log. DEBIAN_MIRROR selects another mirror."
    rm -rf --one-file-system "$root"
    cp -a "$base" "$root"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99old" # a mirror may be weeks behind
    cp --remove-destination -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # of this network
    configure_pip
    enter useradd -m -s /bin/bash user
    mkdir "$root/home/user/verl-agent"
    git ls-files -co --exclude-standard -z | tar --null -T - -c | tar -x -C "$root/home/user/verl-agent"
    enter chown -R user:user /home/user
}

enter() { # enter COMMAND...: run it in the root, in namespaces that end with it
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --ipc bash -euc 'root=$1; shift
        read -ra folders <<<"$1"; shift
        mount -t proc proc "$root/proc"; mount --rbind /sys "$root/sys"; mount -t tmpfs -o mode=755 dev "$root/dev"
        for name in null zero full random urandom tty; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
        mkdir "$root/dev/pts" "$root/dev/shm"; ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
        for folder in "${folders[@]}"; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
        exec chroot "$root" "$@"' bash "$root" "$(tr '\n' ' ' <"$place/folders")" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root "$@"
}

as() { # as USER COMMAND: in the working copy, with a login of that user
    enter su - "$1" -c "cd /home/user/verl-agent && $2"
}

readme() { # readme USER [ARGUMENT OF MAKE...]
    local user=$1 command
    shift
    if [[ ${SHORT:-} != yes ]]; then
        for command in quickstart test; do time as "$user" "make $command $*"; done
        return
    fi
    time as "$user" "make setup $*"
    as "$user" "make doctor $*"
    time as "$user" "source .venv/bin/activate && bash recipes/textcraft/train.sh --config-name grpo_cpu \
        actor_rollout_ref.model.path=smollm2-135m data.train_batch_size=4 actor_rollout_ref.rollout.n=2 \
        trainer.total_training_steps=1 trainer.experiment_name=fresh trainer.val_before_train=false trainer.test_freq=-1"
}

bare() {
    local started=$SECONDS
    if as user "make quickstart" >"$place/said" 2>&1; then fail "make quickstart succeeded on a bare $suite"; fi
    cat "$place/said"
    [[ $((SECONDS - started)) -le 10 ]] || fail "the check took $((SECONDS - started)) s"
    install=$(sed -n 's/^  sudo //p' "$place/said")
    [[ $install == apt-get\ install\ * ]] || fail "the check names no command of apt"
}

packages() {
    as user "make quickstart" >"$place/said" 2>&1 || true
    enter bash -c "apt-get update && $(sed -n 's/^  sudo \([^&]*\).*/\1/p' "$place/said") -y --no-install-recommends" >/dev/null
    readme user
}

user() { # Debian's Python has no headers here, so a run goes on without torch.compile
    enter bash -c "apt-get update && apt-get install -y --no-install-recommends python3-venv" >/dev/null
    readme user ROOT=no
}

light() {
    enter bash -c "apt-get update && apt-get install -y --no-install-recommends python3-venv" >/dev/null
    as user "python3 -m venv .venv && .venv/bin/pip install -q -e '.[api,viewer]' && source .venv/bin/activate \
        && verl-agent eval recipes/guess_number/eval_cpu.yaml model.path=oracle evaluation.output_dir=runs/eval/oracle \
        && verl-agent view runs/eval/oracle --export all.html && test -s all.html"
}

for variant; do
    case $variant in bare | packages | user | light) ;; *) fail "$variant is not a variant: bare, packages, user, light" ;; esac
    echo "== $suite, $variant"
    build
    "$variant"
    echo "== $suite, $variant: passed"
done
