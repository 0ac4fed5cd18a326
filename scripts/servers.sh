# The private servers of one test run; sourced by ./test, which provides `fail`.
#
# A server is: a line in install_missing, a function in start_servers that starts it and exports its address, and
# its lines in stop_servers. Nothing here touches a server that it did not start.

servers=       # directory with the data of this run's servers; empty until there is one
as_server=()   # what to put before a command that runs as the servers' user
pgbouncer_pid=
nats_pid=

install_missing() {
    local missing=()
    find_postgres
    needs cc build-essential
    needs curl curl
    needs initdb postgresql
    needs pgbouncer pgbouncer
    needs mariadbd mariadb-server
    needs redis-server redis-server
    needs nats-server nats-server
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $EUID -eq 0 ]] || fail "programs are missing; install them with: sudo apt-get install ${missing[*]}"
    echo "installing ${missing[*]}" >&2
    install_packages "${missing[@]}"
    find_postgres
}

start_servers() {
    # Settings of the caller for a server of their own must not reach the tests.
    unset "${!PG@}" "${!MYSQL_@}" "${!REDIS@}"
    choose_directory
    start_postgres
    start_pgbouncer
    start_mariadb
    start_redis
    start_redis_cluster
    start_nats
}

stop_servers() {
    [[ -n $servers ]] || return 0
    stop_pgbouncer
    stop_process "$nats_pid"
    if [[ -e $servers/postgres/postmaster.pid ]]; then
        "$servers/postgres-ctl" kill || true
    fi
    if [[ -e $servers/mariadb/mariadb.pid ]]; then
        "$servers/mariadb-ctl" kill || true
    fi
    stop_redis
    rm -rf "$servers"
}

needs() {
    command -v "$1" >/dev/null || missing+=("$2")
}

# Debian keeps the server programs of PostgreSQL outside of PATH, one directory per version.
find_postgres() {
    PATH=$PATH:/usr/sbin:$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
}

# Debian's packages create and start servers of their own. Two files forbid it (MariaDB's package only fills a directory) while this runs; the lock keeps
# another run from removing them too early.
install_packages() (
    local policy=/usr/sbin/policy-rc.d clusters=/etc/postgresql-common/createcluster.d/tramline-test.conf
    exec 9>/run/tramline-test.lock
    flock 9
    trap 'rm -f "$clusters"' EXIT
    mkdir -p "$(dirname "$clusters")"
    echo "create_main_cluster = false" >"$clusters"
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$clusters" "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >&2
    rm -f "$clusters" && rmdir --ignore-fail-on-non-empty "$(dirname "$clusters")"
)

# PostgreSQL and PgBouncer refuse to run as root, and the user postgres may not enter every checkout.
choose_directory() {
    local parent=${CARGO_TARGET_DIR:-target}/servers
    mkdir -p "$parent"
    servers=$(realpath "$(mktemp -d "$parent/XXXXXX")")
    as_server=(env --chdir=/)
    [[ $EUID -eq 0 ]] || return 0
    as_server+=(setpriv --reuid=postgres --regid=postgres --init-groups)
    chown postgres "$servers"
    "${as_server[@]}" test -x "$servers" && return
    rmdir "$servers"
    servers=$(mktemp -d /tmp/tramline-servers.XXXXXX)
    chown postgres "$servers"
    echo "the user postgres cannot reach $parent; the servers' data is in $servers" >&2
}

start_postgres() {
    local data=$servers/postgres ctl=$servers/postgres-ctl attempts=3 locale=()
    # A linguistic sort order, as most installations have, so that nothing relies on the order of bytes.
    [[ $(initdb --help) != *icu-locale* ]] || locale=(--locale-provider=icu --icu-locale=en-US)
    "${as_server[@]}" initdb -D "$data" --username=postgres --auth=trust --encoding=UTF8 --locale=C \
        "${locale[@]}" --no-sync >/dev/null
    # fsync stays on, which is the default: durability is tested by killing the server.
    cat >>"$data/postgresql.conf" <<-END
		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		max_connections = 300
	END
    write_postgres_ctl "$ctl" "$data"
    until choose_port && echo "port = $port" >>"$data/postgresql.conf" && "$ctl" start 2>/dev/null; do
        ((--attempts)) || fail "PostgreSQL does not start: $(tail -n 20 "$servers/postgres.log")"
    done
    postgres_port=$port
    export TRAMLINE_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port/postgres
    export TRAMLINE_TEST_POSTGRES_CTL=$ctl
    echo "$(postgres --version): $TRAMLINE_TEST_POSTGRES" >&2
}

# For tests that take the server away: `kill` is an immediate stop, after which `start` has to recover.
write_postgres_ctl() {
    cat >"$1" <<-END
		#!/usr/bin/env bash
		set -euo pipefail
		case "\${1-}" in
		start) action=(start) ;;
		restart) action=(restart --mode=fast) ;;
		kill) action=(stop --mode=immediate) ;;
		*) echo "usage: \$0 start|restart|kill" >&2 && exit 2 ;;
		esac
		exec ${as_server[*]} "$(command -v pg_ctl)" "\${action[@]}" -D "$2" -l "$2.log" --silent --wait
	END
    chmod +x "$1"
}

start_pgbouncer() {
    local config=$servers/pgbouncer.ini version attempts=3
    version=$(pgbouncer --version | sed -n 's/^PgBouncer //p')
    until choose_port && write_pgbouncer_config >"$config" && pgbouncer_answers; do
        ((--attempts)) || fail "PgBouncer does not start: $(tail -n 20 "$servers/pgbouncer.log")"
    done
    export TRAMLINE_TEST_PGBOUNCER=postgres://postgres@127.0.0.1:$port/postgres
    echo "pgbouncer $version: $TRAMLINE_TEST_PGBOUNCER" >&2
}

# The strictest pooler that users have: a connection per transaction, and no help with prepared statements
# (before 1.21 there was none to switch off).
write_pgbouncer_config() {
    cat <<-END
		[databases]
		* = host=127.0.0.1 port=$postgres_port user=postgres
		[pgbouncer]
		listen_addr = 127.0.0.1
		listen_port = $port
		unix_socket_dir =
		auth_type = any
		pool_mode = transaction
		max_client_conn = 300
		server_login_retry = 1
	END
    [[ $(printf '%s\n' 1.21 "$version" | sort -V | head -n 1) != 1.21 ]] || echo "max_prepared_statements = 0"
}

pgbouncer_answers() {
    "${as_server[@]}" pgbouncer "$config" >"$servers/pgbouncer.log" 2>&1 &
    pgbouncer_pid=$!
    for _ in {1..50}; do
        kill -0 "$pgbouncer_pid" 2>/dev/null || break
        psql -X "postgres://postgres@127.0.0.1:$port/postgres" -c "SELECT 1" &>/dev/null && return
        sleep 0.1
    done
    stop_pgbouncer
    return 1
}

stop_pgbouncer() {
    stop_process "$pgbouncer_pid"
    pgbouncer_pid=
}

stop_process() {
    [[ -n $1 ]] || return 0
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Settings are the defaults, so that durability is tested by killing the server; only the sizes are those of a test.
start_mariadb() {
    local data=$servers/mariadb ctl=$servers/mariadb-ctl attempts=3
    "${as_server[@]}" mariadb-install-db --no-defaults --datadir="$data" --auth-root-authentication-method=normal \
        --skip-test-db --cross-bootstrap >"$data.log" 2>&1 || fail "MariaDB cannot be set up: $(tail -n 20 "$data.log")"
    until choose_port && write_mariadb_ctl "$ctl" "$data" && "$ctl" start 2>/dev/null; do
        ((--attempts)) || fail "MariaDB does not start: $(tail -n 20 "$data.log")"
    done
    export TRAMLINE_TEST_MYSQL=mysql://root@127.0.0.1:$port
    export TRAMLINE_TEST_MYSQL_CTL=$ctl
    echo "$(mariadbd --no-defaults --version): $TRAMLINE_TEST_MYSQL" >&2
}

# As for PostgreSQL. The server has to outlive the script that starts it, and answers when it has recovered.
write_mariadb_ctl() {
    cat >"$1" <<-END
		#!/usr/bin/env bash
		set -euo pipefail
		start() {
		    setsid ${as_server[*]} "$(command -v mariadbd)" --no-defaults --datadir="$2" --socket=mariadb.sock --port=$port \
		        --bind-address=127.0.0.1 --pid-file=mariadb.pid --skip-name-resolve --max-connections=300 \
		        --innodb-log-file-size=256M --innodb-buffer-pool-size=512M >>"$2.log" 2>&1 </dev/null &
		    for _ in {1..300}; do
		        kill -0 \$! 2>/dev/null || return 1
		        mariadb-admin --no-defaults -h 127.0.0.1 -P $port -u root ping &>/dev/null && return
		        sleep 0.1
		    done
		    return 1
		}
		kill_server() {
		    local pid
		    pid=\$(cat "$2/mariadb.pid")
		    kill -KILL "\$pid"
		    while kill -0 "\$pid" 2>/dev/null; do sleep 0.05; done
		    rm -f "$2/mariadb.pid"
		}
		case "\${1-}" in
		start) start ;;
		restart) kill_server && start ;;
		kill) kill_server ;;
		*) echo "usage: \$0 start|restart|kill" >&2 && exit 2 ;;
		esac
	END
    chmod +x "$1"
}

# The settings that the documentation asks for: nothing is evicted, everything is in the append-only file.
start_redis() {
    local data=$servers/redis ctl=$servers/redis-ctl attempts=3
    "${as_server[@]}" mkdir "$data"
    until choose_port && write_redis_ctl "$ctl" "$data" && "$ctl" start 2>/dev/null; do
        ((--attempts)) || fail "Redis does not start: $(tail -n 20 "$data.log")"
    done
    export TRAMLINE_TEST_REDIS=redis://127.0.0.1:$port
    export TRAMLINE_TEST_REDIS_CTL=$ctl
    echo "$(redis-server --version | cut -d ' ' -f 1-3): $TRAMLINE_TEST_REDIS" >&2
}

# Three nodes, each with a third of the slots.
# They bear with each other for long: a node that waits for a busy disk, as after a build, is not taken for dead.
start_redis_cluster() {
    local nodes=() addresses=() controls=() data attempts=5
    for number in 1 2 3; do
        data=$servers/redis-node$number
        "${as_server[@]}" mkdir "$data"
        until choose_node_port && write_redis_ctl "$data-ctl" "$data" --cluster-enabled yes --cluster-node-timeout 15000 &&
            "$data-ctl" start 2>/dev/null; do
            ((--attempts)) || fail "a node of the Redis Cluster does not start: $(tail -n 20 "$data.log")"
        done
        nodes+=("127.0.0.1:$port")
        controls+=("$data-ctl")
    done
    redis-cli --cluster create "${nodes[@]}" --cluster-yes >"$servers/redis-cluster.log" 2>&1 ||
        fail "the Redis Cluster cannot be made: $(tail -n 20 "$servers/redis-cluster.log")"
    for node in "${nodes[@]}"; do
        addresses+=("$node")
        for _ in {1..100}; do
            [[ $(redis-cli -p "${node#*:}" cluster info) == *cluster_state:ok* ]] && break
            sleep 0.1
        done
    done
    export TRAMLINE_TEST_REDIS_CLUSTER=redis://$(IFS=, && echo "${addresses[*]}")
    export TRAMLINE_TEST_REDIS_CLUSTER_CTL=$(IFS=, && echo "${controls[*]}")
    echo "Redis Cluster: $TRAMLINE_TEST_REDIS_CLUSTER" >&2
}

# As for PostgreSQL. `kill` is a kill: what comes back after it is what the append-only file has.
write_redis_ctl() {
    local ctl=$1 data=$2
    shift 2
    cat >"$ctl" <<-END
		#!/usr/bin/env bash
		set -euo pipefail
		start() {
		    setsid ${as_server[*]} "$(command -v redis-server)" --port $port --bind 127.0.0.1 --dir "$data" --pidfile "$data/redis.pid" \
		        --daemonize no --appendonly yes --appendfsync everysec --save "" --maxmemory-policy noeviction $* >>"$data.log" 2>&1 </dev/null &
		    echo \$! >"$data.pid"
		    for _ in {1..300}; do
		        kill -0 \$! 2>/dev/null || return 1
		        [[ \$(redis-cli -p $port ping 2>/dev/null) == PONG ]] && return
		        sleep 0.1
		    done
		    return 1
		}
		kill_server() {
		    local pid
		    pid=\$(cat "$data.pid")
		    kill -KILL "\$pid"
		    while kill -0 "\$pid" 2>/dev/null; do sleep 0.05; done
		    rm -f "$data.pid"
		}
		case "\${1-}" in
		start) start ;;
		restart) kill_server && start ;;
		kill) kill_server ;;
		*) echo "usage: \$0 start|restart|kill" >&2 && exit 2 ;;
		esac
	END
    chmod +x "$ctl"
}

stop_redis() {
    local pid
    for pid in "$servers"/redis*.pid; do
        [[ -e $pid ]] || continue
        "${pid%.pid}-ctl" kill || true
    done
}

start_nats() {
    local attempts=3
    until choose_port && nats_answers; do
        ((--attempts)) || fail "NATS does not start: $(tail -n 20 "$servers/nats.log")"
    done
    export TRAMLINE_TEST_NATS=nats://127.0.0.1:$port
    echo "$(nats-server --version): $TRAMLINE_TEST_NATS" >&2
}

nats_answers() {
    "${as_server[@]}" nats-server --addr 127.0.0.1 --port "$port" >"$servers/nats.log" 2>&1 &
    nats_pid=$!
    for _ in {1..50}; do
        kill -0 "$nats_pid" 2>/dev/null || break
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        sleep 0.1
    done
    stop_process "$nats_pid"
    return 1
}

# Sets `port` to a free one, below the range from which outgoing connections take theirs: a server that is
# killed finds its port still free when it comes back.
choose_port() {
    while port=$((20000 + RANDOM % 12000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
    done
}

# A node of a Cluster also listens 10,000 ports higher. Where outgoing connections take theirs, that one may be gone when the node starts.
choose_node_port() {
    until choose_port && ((port + 10000 < 32768)) && ! (exec 3<>"/dev/tcp/127.0.0.1/$((port + 10000))") 2>/dev/null; do
        :
    done
}
