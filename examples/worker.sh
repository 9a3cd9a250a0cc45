#!/bin/sh
# A worker that needs nothing but a shell and curl.
#
# The worker takes a message from a table of `waterclock serve`, runs a command for it, then takes the next message. While
# the command runs, the worker extends the lease. In a table with groups, it gets the messages of a group in order.
#
#   worker.sh URL TABLE COMMAND [ARGUMENT …]        for example: worker.sh http://127.0.0.1:8040 orders ./handle
#
# The command gets the delivery as JSON on standard input. Its exit code decides the outcome of the message:
#   0      The message is acked.
#   65     The message goes to the dead-letter table (EX_DATAERR of sysexits.h).
#   75     The message is delivered again after 10 seconds, without counting an attempt (EX_TEMPFAIL).
#   other  The message is delivered again after the table's back-off.
#
# On SIGTERM or SIGINT, the worker takes no more messages, waits for the running command, and ends.
#
# Environment: WATERCLOCK_TOKEN, a token with the right "receive table:TABLE"; CONSUMER, a name that no other worker has;
# LEASE, the seconds by which a lease is extended; BEAT, the seconds between extensions, less than the table's ack_wait.
set -eu

[ $# -ge 3 ] || { echo "usage: worker.sh URL TABLE COMMAND [ARGUMENT …]" >&2; exit 2; }
place=$1/api/tables/$2
shift 2
consumer=${CONSUMER:-$(hostname)-$$}
lease=${LEASE:-30}
beat=${BEAT:-10}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
umask 077
# The headers are in a file, because other users of this machine can see the arguments of commands.
printf 'Content-Type: application/json\n' >"$folder/headers"
[ -z "${WATERCLOCK_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$WATERCLOCK_TOKEN" >>"$folder/headers"

say() { printf '%s\n' "worker $consumer: $*" >&2; }

# request VERB BODY: replace the shell with a curl that prints the response. Exit code 22 means an HTTP error.
request() {
    exec curl --silent --show-error --fail --max-time 90 --header "@$folder/headers" --data-binary "$2" "$place/$1"
}

# finish VERB BODY: send the outcome, and retry after a network error, because these requests may be repeated.
finish() {
    for pause in 1 2 4 8 0; do
        code=0
        (request "$1" "$2") >/dev/null || code=$?
        # 22: the server has responded, for example that the lease was lost. A retry would get the same response.
        if [ $code = 0 ] || [ $code = 22 ]; then return 0; fi
        sleep $pause
    done
}

# Processes in the background are killed with signal 9, because a shell that was just forked may lose a SIGTERM.
stopping=
waiting=
stop() {
    stopping=yes
    [ -z "$waiting" ] || kill -9 "$waiting" 2>/dev/null || true
}
trap stop TERM INT

keep_lease() {
    while sleep "$beat"; do
        (request extend "{\"deliveries\": [\"$1\"], \"duration\": \"${lease}s\"}") >/dev/null || return 0
    done
}

handle() {
    delivery=$1
    shift
    keep_lease "$delivery" &
    beating=$!
    # The command ignores the signals that end the worker.
    (trap '' TERM INT; exec "$@") <"$folder/delivery" &
    running=$!
    code=0
    wait $running || code=$?
    while kill -0 $running 2>/dev/null; do # a signal interrupts `wait`, but the command still runs
        code=0
        wait $running || code=$?
    done
    kill -9 $beating 2>/dev/null || true
    wait $beating 2>/dev/null || true
    case $code in
    0) finish ack "{\"deliveries\": [\"$delivery\"]}" ;;
    65) finish dead-letter "{\"deliveries\": [\"$delivery\"], \"why\": \"exit code 65\"}" ;;
    75) finish snooze "{\"deliveries\": [\"$delivery\"], \"delay\": \"10s\"}" ;;
    *) finish nack "{\"deliveries\": [\"$delivery\"], \"error\": \"exit code $code\"}" ;;
    esac
}

say "taking messages from $place"
while [ -z "$stopping" ]; do
    # curl runs in the background, so that a signal ends the wait. The server then gives back the message it has taken.
    request receive "{\"consumer\": \"$consumer\", \"limit\": 1, \"wait\": \"30s\"}" >"$folder/answer" &
    waiting=$!
    code=0
    wait $waiting || code=$?
    waiting=
    [ -z "$stopping" ] || break
    if [ $code != 0 ]; then
        sleep 1
        continue
    fi
    # The handle of the delivery is the first field of the response.
    delivery=$(sed -n 's/^{"deliveries":\[{"delivery":"\([A-Za-z0-9_-]*\)".*/\1/p' "$folder/answer")
    [ -n "$delivery" ] || continue
    { sed 's/^{"deliveries":\[\(.*\)\]}$/\1/' "$folder/answer" && echo; } >"$folder/delivery"
    handle "$delivery" "$@"
done
say "stopped"
