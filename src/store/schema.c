/* The schema and its migrations: one entry a version, never changed once released, only added to. */
#include <string.h>

#include "store/meta_int.h"

static const char schema_1[] =
    "CREATE TABLE node(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
    "INSERT INTO node VALUES('seed', randomblob(32));"
    "CREATE TABLE tenants(name TEXT PRIMARY KEY, created_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE api_keys(id TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants(name),"
    " name TEXT NOT NULL, prefix TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, created_ms INTEGER NOT NULL,"
    " last_used_ms INTEGER NOT NULL DEFAULT 0, revoked_ms INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;"
    "CREATE TABLE templates(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL,"
    " sha256 TEXT NOT NULL, state TEXT NOT NULL, public INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL, last_spawned_ms INTEGER NOT NULL,"
    " spawn_count INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE template_names(tenant TEXT NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL,"
    " template_id TEXT NOT NULL, PRIMARY KEY(tenant, name, tag)) WITHOUT ROWID;"
    "CREATE INDEX template_names_id ON template_names(template_id);"
    "CREATE TABLE sandboxes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, template_id TEXT NOT NULL,"
    " alias TEXT NOT NULL, state TEXT NOT NULL, cause TEXT NOT NULL, detail TEXT NOT NULL,"
    " session_id TEXT NOT NULL, envd_version TEXT NOT NULL, boot_id TEXT NOT NULL, metadata TEXT,"
    " network TEXT, lifecycle TEXT, mounts TEXT, cpu_millis INTEGER NOT NULL,"
    " memory_bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL, pids_max INTEGER NOT NULL,"
    " timeout_s INTEGER NOT NULL, created_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL,"
    " end_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, deadline_boot_ms INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX sandboxes_live ON sandboxes(state) WHERE state NOT IN ('killed', 'failed');"
    "CREATE INDEX sandboxes_tenant ON sandboxes(tenant, created_ms, id);"
    "CREATE INDEX sandboxes_ended ON sandboxes(ended_ms) WHERE ended_ms > 0;"
    "CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL,"
    " tenant TEXT NOT NULL, sandbox_id TEXT NOT NULL, session_id TEXT NOT NULL, kind TEXT NOT NULL,"
    " from_state TEXT NOT NULL, to_state TEXT NOT NULL, cause TEXT NOT NULL, detail TEXT NOT NULL);"
    "CREATE INDEX events_sandbox ON events(sandbox_id, seq);"
    "CREATE INDEX events_tenant ON events(tenant, seq);"
    "CREATE TABLE sessions(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL,"
    " state TEXT NOT NULL, volume_id TEXT NOT NULL, sandbox_id TEXT NOT NULL, template_ref TEXT NOT NULL,"
    " metadata TEXT, epoch INTEGER NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,"
    " opened_ms INTEGER NOT NULL, closed_ms INTEGER NOT NULL, UNIQUE(tenant, key)) WITHOUT ROWID;"
    "CREATE INDEX sessions_tenant ON sessions(tenant, created_ms, id);"
    "CREATE TABLE volumes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL,"
    " session_id TEXT NOT NULL, state TEXT NOT NULL, bytes INTEGER NOT NULL, created_ms INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE TABLE answers(tenant TEXT NOT NULL, key TEXT NOT NULL, request_hash BLOB NOT NULL,"
    " status INTEGER NOT NULL, body TEXT NOT NULL, created_ms INTEGER NOT NULL,"
    " PRIMARY KEY(tenant, key)) WITHOUT ROWID;"
    "CREATE INDEX answers_age ON answers(created_ms);";

/* Names of secrets and groups are unique within a tenant; a record's cursor moves in the transaction that
 * adds its rows. */
static const char schema_2[] =
    "CREATE TABLE policies(tenant TEXT NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL,"
    " version INTEGER NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,"
    " PRIMARY KEY(tenant, name)) WITHOUT ROWID;"
    "CREATE TABLE secrets(id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, name TEXT NOT NULL,"
    " metadata TEXT NOT NULL, sealed BLOB NOT NULL, version INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
    " updated_ms INTEGER NOT NULL, PRIMARY KEY(tenant, name)) WITHOUT ROWID;"
    "CREATE TABLE authorities(tenant TEXT PRIMARY KEY, cert TEXT NOT NULL, sealed_key BLOB NOT NULL,"
    " created_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE outbound(seq INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL,"
    " tenant TEXT NOT NULL, sandbox_id TEXT NOT NULL, session_id TEXT NOT NULL, kind TEXT NOT NULL,"
    " denied INTEGER NOT NULL, doc TEXT NOT NULL);"
    "CREATE INDEX outbound_tenant ON outbound(tenant, seq);"
    "CREATE INDEX outbound_sandbox ON outbound(sandbox_id, seq);"
    "CREATE INDEX outbound_session ON outbound(session_id, seq) WHERE session_id <> '';"
    "CREATE INDEX outbound_age ON outbound(time_ms);"
    "CREATE TABLE outbound_cursor(one INTEGER PRIMARY KEY CHECK(one = 1), file TEXT NOT NULL,"
    " position INTEGER NOT NULL);";

/* A sandbox's pause: pause_depth is "" (it runs), "warm", "cold" or "disk"; pause_id the snapshot that a cold
 * one is in. Names of snapshots are unique within a tenant; taking a name again moves it. */
static const char schema_3[] =
    "ALTER TABLE sandboxes ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE sandboxes ADD COLUMN pause_depth TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN pause_id TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN paused_ms INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sandboxes ADD COLUMN env_sealed BLOB NOT NULL DEFAULT x'';"
    "CREATE TABLE snapshots(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, purpose TEXT NOT NULL,"
    " kind TEXT NOT NULL, state TEXT NOT NULL, sandbox_id TEXT NOT NULL, session_id TEXT NOT NULL,"
    " template_id TEXT NOT NULL, parent_id TEXT NOT NULL, generation INTEGER NOT NULL, detail TEXT NOT NULL,"
    " meta TEXT NOT NULL, env_sealed BLOB NOT NULL, bytes INTEGER NOT NULL, exclusive_bytes INTEGER NOT NULL,"
    " frozen_us INTEGER NOT NULL, total_us INTEGER NOT NULL, created_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX snapshots_tenant ON snapshots(tenant, created_ms, id);"
    "CREATE INDEX snapshots_sandbox ON snapshots(sandbox_id, created_ms);"
    "CREATE TABLE snapshot_names(tenant TEXT NOT NULL, name TEXT NOT NULL, snapshot_id TEXT NOT NULL,"
    " PRIMARY KEY(tenant, name)) WITHOUT ROWID;"
    "CREATE INDEX snapshot_names_id ON snapshot_names(snapshot_id);"
    "CREATE TABLE snapshot_policies(sandbox_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, policy TEXT NOT NULL,"
    " last_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "ALTER TABLE templates ADD COLUMN meta TEXT NOT NULL DEFAULT '{}';"
    "ALTER TABLE templates ADD COLUMN build_id TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE template_names ADD COLUMN created_ms INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE builds(id TEXT PRIMARY KEY, template_id TEXT NOT NULL, tenant TEXT NOT NULL,"
    " state TEXT NOT NULL, ask TEXT NOT NULL, reason TEXT NOT NULL, step TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX builds_template ON builds(template_id, created_ms);"
    "CREATE TABLE build_logs(build_id TEXT NOT NULL, seq INTEGER NOT NULL, time_ms INTEGER NOT NULL,"
    " level TEXT NOT NULL, step TEXT NOT NULL, message TEXT NOT NULL, PRIMARY KEY(build_id, seq))"
    " WITHOUT ROWID;"
    "CREATE TABLE layers(hash TEXT PRIMARY KEY, tenant TEXT NOT NULL, state TEXT NOT NULL,"
    " meta TEXT NOT NULL, bytes INTEGER NOT NULL, used_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "ALTER TABLE volumes ADD COLUMN kind TEXT NOT NULL DEFAULT 'exclusive';";

static const char *const migrations[] = {schema_1, schema_2, schema_3};

int meta_sql_err(sqlite3 *db, struct hf_err *err, const char *what)
{
    int code = sqlite3_extended_errcode(db);
    int r = -EIO;
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        r = -EBUSY;
        break;
    case SQLITE_CONSTRAINT:
        r = -EEXIST;
        break;
    case SQLITE_FULL:
        r = -ENOSPC;
        break;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        r = -EACCES;
        break;
    default:
        break;
    }
    return hf_err_set(err, r, "%s: %s (database %s)", what, sqlite3_errmsg(db),
                      sqlite3_db_filename(db, "main"));
}

static int user_version(sqlite3 *db, int *ret)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &s, NULL) != SQLITE_OK)
        return -EIO;
    int r = -EIO;
    if (sqlite3_step(s) == SQLITE_ROW) {
        *ret = sqlite3_column_int(s, 0);
        r = 0;
    }
    (void)sqlite3_finalize(s);
    return r;
}

static int apply(sqlite3 *db, int from, struct hf_err *err)
{
    for (size_t v = (size_t)from; v < HF_ARRAY_LEN(migrations); v++) {
        char set[48];
        (void)sqlite3_snprintf(sizeof(set), set, "PRAGMA user_version = %d", (int)v + 1);
        if (sqlite3_exec(db, migrations[v], NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_exec(db, set, NULL, NULL, NULL) != SQLITE_OK)
            return meta_sql_err(db, err, "cannot bring the database schema up to date");
    }
    return 0;
}

int meta_migrate(sqlite3 *db, struct hf_err *err)
{
    /* IMMEDIATE first: two programs that start at once must not both see version 0. */
    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return meta_sql_err(db, err, "cannot lock the database");
    int version = 0;
    int r = user_version(db, &version);
    if (r < 0)
        r = meta_sql_err(db, err, "cannot read the schema version");
    else if (version < 0 || (size_t)version > HF_ARRAY_LEN(migrations))
        r = hf_err_set(err, -EPROTO,
                       "the database has schema version %d and this program knows up to %zu: "
                       "it was used by a newer holdfast; upgrade this one",
                       version, HF_ARRAY_LEN(migrations));
    else
        r = apply(db, version, err);
    if (r < 0) {
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        return r;
    }
    if (sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        return meta_sql_err(db, err, "cannot store the database schema");
    return 0;
}
