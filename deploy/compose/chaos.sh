# Kills a broker of the groups every $CHAOS_PAUSE seconds and starts it again after 10: nothing that was acknowledged may be lost.
set -u
while sleep "$CHAOS_PAUSE"; do
    victim=$(docker ps --filter "label=com.docker.compose.project=$CHAOS_PROJECT" --format '{{.Names}}' | grep -E 'broker-[ab]-[0-9]' | shuf -n 1)
    [ -n "$victim" ] || { echo "no broker of a group runs: start them with --profile ha"; continue; }
    echo "$(date -u +%T) kill $victim"
    docker kill -s KILL "$victim" >/dev/null
    sleep 10
    docker start "$victim" >/dev/null && echo "$(date -u +%T) started $victim"
done
