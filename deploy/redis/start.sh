#!/bin/sh
# Redis with a password that nobody had to think of: made at the first start, kept in the volume `secrets`, which only
# Redis and the server mount. REDIS_PASSWORD replaces it. What stands in the command line goes on to redis-server.
set -eu
secrets=${SECRETS_DIR:-/secrets}
url=$secrets/everlong_redis_url
if [ -n "${REDIS_PASSWORD:-}" ]; then
  password=$REDIS_PASSWORD
elif [ -s "$url" ]; then
  password=$(sed 's|^redis://:\(.*\)@.*|\1|' "$url")
else
  password=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
fi
case $password in
  *[!A-Za-z0-9._~-]*) echo "REDIS_PASSWORD may have letters, digits and . _ ~ - only: it is part of a URL" >&2; exit 1 ;;
esac
printf 'requirepass %s\n' "$password" >"$secrets/redis.conf"
# Beside its place and renamed: a server that starts meanwhile reads all of it or nothing.
printf 'redis://:%s@redis:6379/0\n' "$password" >"$url.new"
mv "$url.new" "$url"
unset REDIS_PASSWORD
# The image's own script, which gives the data to the user redis and goes on as that user.
exec docker-entrypoint.sh redis-server "$secrets/redis.conf" "$@"
