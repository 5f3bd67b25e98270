-- SQLite's functions, as far as our statements use them, and what every write begins with.

CREATE SCHEMA IF NOT EXISTS {schema};

CREATE OR REPLACE FUNCTION {schema}.strftime(form text, moment text, shift text DEFAULT '0 seconds')
  RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT to_char((CASE moment WHEN 'now' THEN statement_timestamp() ELSE moment::timestamptz END
    + shift::interval) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

CREATE OR REPLACE FUNCTION {schema}.julianday(moment text)
  RETURNS double precision LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT CAST(extract(epoch FROM CASE moment WHEN 'now' THEN statement_timestamp()
    ELSE moment::timestamptz END) / 86400.0 + 2440587.5 AS double precision) $$;

CREATE OR REPLACE FUNCTION {schema}.iif(condition boolean, met anyelement, other anyelement)
  RETURNS anyelement LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN condition THEN met ELSE other END $$;

CREATE OR REPLACE FUNCTION {schema}.typeof(value anyelement)
  RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN 'null' ELSE pg_typeof(value)::text END $$;

CREATE OR REPLACE FUNCTION {schema}.hex(value bytea)
  RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT upper(encode(value, 'hex')) $$;

CREATE OR REPLACE FUNCTION {schema}.instr(value text, part text)
  RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT strpos(value, part) $$;

CREATE OR REPLACE FUNCTION {schema}.to_blob(value text)
  RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT convert_to(value, 'UTF8') $$;
CREATE OR REPLACE FUNCTION {schema}.to_blob(value bytea)
  RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT value $$;

-- Keeps other writers out until the transaction ends, and refuses another table than was looked at.
CREATE OR REPLACE FUNCTION {schema}.unrewind_guard(key bigint, place bigint, node bigint)
  RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(key);
  PERFORM 1 FROM pg_catalog.pg_class c
    WHERE c.oid = to_regclass('{landmark}') AND c.oid = place AND c.relfilenode = node;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'another table stands here than was looked at' USING ERRCODE = 'UR003';
  END IF;
END $$;
