//! Where the database is, and how the processes reach it.

use crate::crew::WORKERS;
use crate::proxy::Proxy;
use std::process::Command;
use std::time::Duration;

pub(crate) struct Place {
    /// Straight to the database.
    pub(crate) url: String,
    /// A proxy for every worker process, and the last one for the emitter; none for a file, nor for a Cluster, whose nodes say themselves
    /// where they are.
    pub(crate) proxies: Vec<Proxy>,
    /// The program that restarts the server; none for a file.
    control: Option<String>,
    /// Where Redis has the store: of a Cluster the node.
    redis: Option<String>,
    _folder: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) async fn named(store: &str) -> Place {
        match store {
            "sqlite" => Place::sqlite(),
            "postgres" => Place::postgres().await,
            "mysql" => Place::mysql().await,
            "redis" => Place::redis().await,
            "redis_cluster" => Place::redis_cluster(),
            "redis_spread" => Place::redis_spread(),
            _ => unreachable!("{store} is no store"),
        }
    }

    fn sqlite() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("disturbed.db").display());
        Place { url, proxies: Vec::new(), control: None, redis: None, _folder: Some(folder) }
    }

    async fn postgres() -> Place {
        let server = postgres();
        // Of a role whose commits wait for nothing unless they are told to.
        let name = name();
        let sql = format!(
            "CREATE ROLE {name} SUPERUSER LOGIN; ALTER ROLE {name} SET synchronous_commit = off; CREATE SCHEMA {name} AUTHORIZATION {name}"
        );
        run_on_postgres(&sql).await;
        let url = format!("{}?schema={name}", server.replacen("postgres@", &format!("{name}@"), 1));
        Place::on_server(url, "TRAMLINE_TEST_POSTGRES_CTL").await
    }

    async fn mysql() -> Place {
        let server = std::env::var("TRAMLINE_TEST_MYSQL").expect("no MySQL to test with: run ./test");
        let database = name();
        run_on_mysql(&server, &format!("CREATE DATABASE {database}")).await;
        Place::on_server(format!("{server}/{database}"), "TRAMLINE_TEST_MYSQL_CTL").await
    }

    async fn redis() -> Place {
        let server = std::env::var("TRAMLINE_TEST_REDIS").expect("no Redis to test with: run ./test");
        let url = format!("{server}?name={}", name());
        let place = Place { redis: Some(server), ..Place::on_server(url, "TRAMLINE_TEST_REDIS_CTL").await };
        place.sync("always");
        place
    }

    /// What is restarted is the node that has the store. The others only see that it is away.
    fn redis_cluster() -> Place {
        let servers =
            std::env::var("TRAMLINE_TEST_REDIS_CLUSTER").expect("no Redis Cluster to test with: run ./test");
        let addresses: Vec<&str> = servers.trim_start_matches("redis://").split(',').collect();
        let at = node_of_store(&addresses);
        let place = Place {
            url: format!("{servers}?name={}", name()),
            proxies: Vec::new(),
            control: control("TRAMLINE_TEST_REDIS_CLUSTER_CTL").split(',').nth(at).map(str::to_owned),
            redis: Some(format!("redis://{}", addresses[at])),
            _folder: None,
        };
        place.sync("always");
        place
    }

    /// The same with a slot for each topic; what is restarted is a node that has some of it.
    fn redis_spread() -> Place {
        let place = Place::redis_cluster();
        Place { url: format!("{}_spread&spread=topics", place.url), ..place }
    }

    async fn on_server(url: String, variable: &str) -> Place {
        let mut proxies = Vec::new();
        for _ in 0..=WORKERS {
            proxies.push(Proxy::start(host_of(&url)).await);
        }
        Place { url, proxies, control: Some(control(variable)), redis: None, _folder: None }
    }

    /// Restarts the server, if there is one.
    pub(crate) fn restart(&self) {
        self.control("restart");
    }

    /// The server ends at once, without a chance to write anything, and recovers.
    pub(crate) async fn crash(&self) {
        self.control("kill");
        self.control("start");
        self.until_whole().await;
    }

    /// What tests before this one have written need not be recovered after a crash of PostgreSQL: that may take long.
    pub(crate) async fn settle_down(&self) {
        run_on_postgres("CHECKPOINT").await;
    }

    /// The process of PostgreSQL that writes the log to the disk when nobody waits for it.
    pub(crate) async fn log_writer(&self) -> u32 {
        use sqlx::Connection;
        let mut connection = sqlx::PgConnection::connect(&postgres()).await.unwrap();
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
        let process: i32 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        process.cast_unsigned()
    }

    fn control(&self, what: &str) {
        let Some(control) = &self.control else { return };
        assert!(Command::new(control).arg(what).status().unwrap().success());
        if what != "kill" {
            self.sync("always");
        }
    }

    /// When Redis syncs what it has written. It starts with `everysec`, which may lose what was acknowledged just before it is killed;
    /// what is checked here is promised for `always`.
    fn sync(&self, when: &str) {
        if let Some(redis) = &self.redis {
            run_on_redis(redis, &["CONFIG", "SET", "appendfsync", when]);
        }
    }

    /// Removes what was made on a server.
    pub(crate) async fn remove(&self) {
        if let Some((server, database)) =
            self.url.strip_prefix("mysql://").and_then(|url| url.split_once('/'))
        {
            run_on_mysql(&format!("mysql://{server}"), &format!("DROP DATABASE {database}")).await;
        } else if self.url.starts_with("postgres") {
            run_on_postgres(&format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}", name = name())).await;
        } else if let Some(redis) = &self.redis {
            let all = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('UNLINK', key) end";
            self.until_whole().await;
            run_on_redis(redis, &["EVAL", all, "0", &format!("{{{}}}:*", name())]);
            self.sync("everysec");
        }
    }

    /// Waits until all nodes of a Cluster take each other for healthy again, which takes a new one two seconds.
    async fn until_whole(&self) {
        let nodes = self.url.trim_start_matches("redis://").split('?').next().unwrap_or_default();
        let nodes: Vec<String> = nodes.split(',').map(|address| format!("redis://{address}")).collect();
        let is_well = |node: &String| {
            let mut info = redis::cmd("CLUSTER");
            let state: String = info.arg("INFO").query(&mut connect_to_redis(node)).unwrap();
            state.contains("cluster_state:ok")
        };
        while nodes.len() > 1 && !nodes.iter().all(is_well) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// True if the end of a transaction can be told from what is sent.
    pub(crate) fn says_commit(&self) -> bool {
        self.url.starts_with("postgres") || self.url.starts_with("mysql")
    }

    pub(crate) fn url_through(&self, proxy: usize) -> String {
        match self.proxies.get(proxy) {
            None => self.url.clone(),
            Some(proxy) => self.url.replacen(&host_of(&self.url), &format!("127.0.0.1:{}", proxy.port), 1),
        }
    }
}

fn host_of(url: &str) -> String {
    let after_user = url.split(['@', '/']).rfind(|part| part.contains(':')).unwrap_or_default();
    after_user.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// Of whatever this run makes on a server.
fn name() -> String {
    format!("disturbed_{}", std::process::id())
}

fn postgres() -> String {
    std::env::var("TRAMLINE_TEST_POSTGRES").expect("no PostgreSQL to test with: run ./test")
}

fn control(variable: &str) -> String {
    std::env::var(variable).expect("no control of the server: run ./test")
}

/// Which of the nodes of a Cluster has the store: one that has not says who has.
fn node_of_store(addresses: &[&str]) -> usize {
    let mut first = connect_to_redis(&format!("redis://{}", addresses[0]));
    let Err(moved) = redis::cmd("EXISTS").arg(format!("{{{}}}:", name())).exec(&mut first) else { return 0 };
    let (address, _) = moved.redirect_node().unwrap();
    addresses.iter().position(|one| *one == address).unwrap()
}

fn run_on_redis(url: &str, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connect_to_redis(url)).unwrap();
}

fn connect_to_redis(url: &str) -> redis::Connection {
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

async fn run_on_postgres(sql: &str) {
    use sqlx::{AssertSqlSafe, Connection};
    let mut connection = sqlx::PgConnection::connect(&postgres()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

async fn run_on_mysql(server: &str, sql: &str) {
    use sqlx::{AssertSqlSafe, Connection};
    let mut connection = sqlx::MySqlConnection::connect(server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}
