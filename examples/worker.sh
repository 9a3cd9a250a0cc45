#!/bin/sh
# A worker that needs nothing but a shell and curl.
#
# It takes one message at a time from a message table that `waterclock serve` serves, and runs a command on it. While the
# command runs, it extends the lease. In a table with groups, the messages of a group come in order.
#
#   worker.sh URL TABLE COMMAND [ARGUMENT …]        for example: worker.sh http://127.0.0.1:8040 orders ./handle
#
# The command gets the delivery as JSON on standard input. Its exit code decides what happens to the message:
#   0      it is acked
#   65     it cannot be handled and goes to the dead-letter table (EX_DATAERR of sysexits.h)
#   75     it is sent again after 10 seconds, without counting an attempt (EX_TEMPFAIL)
#   other  it is sent again after the back-off of the table
#
# SIGTERM and SIGINT end the worker: it takes no more messages and waits for the command that runs.
#
# Environment: WATERCLOCK_TOKEN, a token with the right "receive table:TABLE"; CONSUMER, a name that no other worker has;
# LEASE and BEAT, seconds for which a lease is extended, and how often. BEAT must be shorter than the table's ack_wait.
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
# In a file, since other users of this machine see the arguments of commands.
printf 'Content-Type: application/json\n' >"$folder/headers"
[ -z "${WATERCLOCK_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$WATERCLOCK_TOKEN" >>"$folder/headers"

say() { printf '%s\n' "worker $consumer: $*" >&2; }

# request VERB BODY: become a curl that writes the answer to standard output. Exit code 22: an HTTP error, which it names.
request() {
    exec curl --silent --show-error --fail --max-time 90 --header "@$folder/headers" --data-binary "$2" "$place/$1"
}

# Tell the outcome; again after a failure of the network, since each of these requests may be repeated.
finish() {
    for pause in 1 2 4 8 0; do
        code=0
        (request "$1" "$2") >/dev/null || code=$?
        # 22: the server has answered, for example that the lease was lost. It would answer the same again.
        if [ $code = 0 ] || [ $code = 22 ]; then return 0; fi
        sleep $pause
    done
}

stopping=
waiting=
stop() {
    stopping=yes
    [ -z "$waiting" ] || kill "$waiting" 2>/dev/null || true
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
    # Its own background process: a signal that ends the worker must not end the command.
    (trap '' TERM INT; exec "$@") <"$folder/delivery" &
    running=$!
    code=0
    wait $running || code=$?
    while kill -0 $running 2>/dev/null; do # a signal interrupts `wait`, and the command goes on
        code=0
        wait $running || code=$?
    done
    kill $beating 2>/dev/null || true
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
    # In the background, so that a signal ends the wait at once. The server then gives back what it has just taken.
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
    # The handle of the delivery is the first field of the answer.
    delivery=$(sed -n 's/^{"deliveries":\[{"delivery":"\([A-Za-z0-9_-]*\)".*/\1/p' "$folder/answer")
    [ -n "$delivery" ] || continue
    { sed 's/^{"deliveries":\[\(.*\)\]}$/\1/' "$folder/answer" && echo; } >"$folder/delivery"
    handle "$delivery" "$@"
done
say "stopped"
