#!/bin/sh
# The part of the PostgreSQL image's entrypoint that docker-compose.yml relies on: first user, database and init files.
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    "$bin/initdb" --pgdata="$data" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8
    rm /tmp/password
    "$bin/pg_ctl" --pgdata="$data" --wait -o "-c listen_addresses='' -c unix_socket_directories=/tmp" start
    export PGPASSWORD="$POSTGRES_PASSWORD"
    as_user="psql --host=/tmp --username=$POSTGRES_USER --set=ON_ERROR_STOP=1"
    $as_user --dbname=postgres --command="CREATE DATABASE \"$POSTGRES_DB\""
    for file in /docker-entrypoint-initdb.d/*.sql; do
        [ ! -e "$file" ] || $as_user --dbname="$POSTGRES_DB" --file="$file"
    done
    "$bin/pg_ctl" --pgdata="$data" --wait stop
fi
exec "$bin/postgres" -D "$data" -c listen_addresses=127.0.0.1 -c unix_socket_directories=/tmp -c shared_memory_type=mmap
