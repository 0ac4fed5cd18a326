#!/usr/bin/env bash
# Single emits over HTTP from 64 kept connections, beside a bare axum endpoint that reads the same JSON and answers 204, with `wrk`.
# The two are measured in turns, three times each; each server has the machine to itself but for the client.
#
#   scripts/http-rate.sh                     on a SQLite file under target/
#   scripts/http-rate.sh postgres://..       on another store; `./test --servers` starts some
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "http-rate: $*" >&2
    exit 1
}

command -v wrk >/dev/null || fail "wrk is missing; install it (apt-get install wrk) and try again."
cargo build --release --quiet
cargo build --release --quiet -p tramline-server --example bare

target=${CARGO_TARGET_DIR:-target}
folder=$(mktemp -d "$target/http-rate.XXXXXX")
trap 'rm -rf "$folder"' EXIT

cat >"$folder/emit.lua" <<END
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"payload":"' .. string.rep("x", 100) .. '","type":"bench"}'
END

# Requests per second to a path of the server that a command starts. Anything but a 2xx answer is a failure. Run in a shell of its own,
# with which the server ends.
rate() {
    local path=$1 printed server
    shift
    ! (exec 3<>/dev/tcp/127.0.0.1/7079) 2>/dev/null || fail "port 7079 is taken."
    "$@" >"$folder/log" 2>&1 &
    server=$!
    # shellcheck disable=SC2064
    trap "kill $server 2>/dev/null && wait $server || true" EXIT
    for _ in {1..100}; do
        (exec 3<>/dev/tcp/127.0.0.1/7079) 2>/dev/null && break
        kill -0 "$server" 2>/dev/null || fail "the server did not start: $(tail -n 5 "$folder/log")"
        sleep 0.1
    done
    printed=$(wrk -t 1 -c 64 -d 5 -s "$folder/emit.lua" "http://127.0.0.1:7079$path")
    [[ $printed != *Non-2xx* ]] || fail "the server refused: $printed"
    sed -n 's/^Requests\/sec: *//p' <<<"$printed"
}

for round in 1 2 3; do
    bare=$(rate /emit "$target/release/examples/bare" 127.0.0.1:7079)
    emit=$(rate "/v1/topics/http-rate/events" "$target/release/tramline" serve --listen 127.0.0.1:7079 \
        --store "${1:-sqlite://$folder/$round.db}")
    awk -v bare="$bare" -v emit="$emit" 'BEGIN { printf "bare %d/s, emits %d/s: %.2f\n", bare, emit, emit / bare }'
done
