//! What is acknowledged is on disk, whatever somebody has made the default.

use crate::bed::{Private, event, ids, server};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use std::collections::BTreeSet;
use tramline::model::id::Incarnation;
use tramline::model::subscription::{Guarantee, Ordering, Policy};
use tramline::store::Store;

/// Writes down which setting each transaction has that writes chunks or slices, or takes something from a lane.
const WATCH: &str = "CREATE TABLE $s.seen (what text, setting text);
    CREATE FUNCTION $s.see() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
        INSERT INTO $s.seen VALUES (TG_ARGV[0], current_setting('synchronous_commit'));
        RETURN NULL;
    END $f$;
    CREATE TRIGGER emits AFTER INSERT ON $s.tramline_chunk FOR EACH ROW EXECUTE FUNCTION $s.see('emit');
    CREATE TRIGGER takes AFTER UPDATE ON $s.tramline_slice FOR EACH ROW EXECUTE FUNCTION $s.see('claim');
    CREATE TRIGGER takes AFTER UPDATE ON $s.tramline_lane FOR EACH ROW WHEN (NEW.leased > OLD.leased)
        EXECUTE FUNCTION $s.see('claim');
    CREATE TRIGGER ends AFTER DELETE ON $s.tramline_slice FOR EACH ROW EXECUTE FUNCTION $s.see('settle')";

/// The default of the role was taken for what the program wanted: a server that died took acknowledged events along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_wait_for_the_disk_although_the_role_has_switched_that_off() {
    for (pooled, more) in [(false, ""), (true, "&pooled=true")] {
        let store = Careless::open(more).await;
        let once = Policy { guarantee: Guarantee::AtMostOnce, ..Policy::default() };
        let plain = store.private.subscribe("plain", Ordering::None).await;
        let ordered = store.private.subscribe("ordered", Ordering::Key).await;
        store.private.rows(WATCH).await;
        store.private.emit(event("k")).await.unwrap();
        store.private.emit(event("k").idempotency_key("once")).await.unwrap();
        assert_eq!(store.seen("emit").await, ["on"], "pooled: {pooled}");
        // What is at least once is due again if it is lost. But with order the first claim looks how far the lanes are complete, which
        // has to be on the disk of this server.
        for (id, waits) in [(plain.id, "off"), (ordered.id, "local")] {
            let claimed = store.private.claim(id, 10).await;
            assert_eq!(ids(&claimed).len(), 2);
            assert_eq!(store.seen("claim").await, [waits], "pooled: {pooled}");
            store.private.settle_done(id, &claimed).await;
            assert_eq!(store.seen("settle").await, ["on"], "pooled: {pooled}");
        }
        let once = store.private.subscribe_with("once", once).await;
        store.private.emit(event("k")).await.unwrap();
        store.private.rows("DELETE FROM $s.seen").await;
        assert!(!ids(&store.private.claim(once.id, 10).await).is_empty());
        assert_eq!(store.seen("claim").await, ["on"], "what is consumed must stay so; pooled: {pooled}");
        store.close().await;
    }
}

#[tokio::test]
async fn who_asks_for_less_in_the_url_gets_it() {
    let store = Careless::open("&options=-c%20synchronous_commit%3Doff").await;
    store.private.rows(WATCH).await;
    store.private.emit(event("k")).await.unwrap();
    assert_eq!(store.seen("emit").await, ["off"]);
    store.close().await;
}

/// A store of a role that does not care for its data.
struct Careless {
    private: Private,
    role: String,
}

impl Careless {
    async fn open(more: &str) -> Careless {
        let role = format!("careless_{:x}", Incarnation::random().0);
        let mut admin = PgConnection::connect(&server()).await.unwrap();
        let sql =
            format!("CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET synchronous_commit = off");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        let server = server().replacen("postgres@", &format!("{role}@"), 1);
        Careless { private: Private::open_at(&server, more).await, role }
    }

    /// The settings with which something was done since this was last asked.
    async fn seen(&self, what: &str) -> Vec<String> {
        let sql = format!(
            "WITH gone AS (DELETE FROM $s.seen RETURNING what, setting) SELECT setting FROM gone WHERE what = '{what}'"
        );
        let seen: BTreeSet<String> = self.private.rows(&sql).await.iter().map(|row| row.get(0)).collect();
        seen.into_iter().collect()
    }

    async fn close(self) {
        let sql = format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}", role = self.role);
        self.private.store.close().await;
        self.private.rows(&sql).await;
    }
}
