#!/usr/bin/env bash
# Install Chromium for the web environments if this can be done without a password: as root, with apt.
# Otherwise print the command. `make chromium` and CI call this script. An installed browser is not changed.
set -euo pipefail

for name in chromium-headless-shell chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name"; then exit 0; fi
done
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends chromium-headless-shell >/dev/null \
        || apt-get -qq install -y --no-install-recommends chromium >/dev/null
    command -v chromium-headless-shell || command -v chromium
else
    echo "Install Chromium: sudo apt-get install chromium-headless-shell, or without root: playwright install chromium-headless-shell" >&2
    exit 1
fi
