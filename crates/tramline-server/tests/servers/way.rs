//! A way to a server that can be cut.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) struct Way {
    port: u16,
    /// The open connections; `None` while the way is cut.
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Way {
    /// The way to the server of a store, and the URL of the store at its beginning.
    pub(crate) fn to(store: &str) -> (Way, String) {
        let (scheme, rest) = store.split_once("://").unwrap();
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap());
        let (user, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let way = Way::open(server.to_owned());
        let at = if user.is_empty() { "" } else { "@" };
        let url = format!("{scheme}://{user}{at}127.0.0.1:{}{tail}", way.port);
        (way, url)
    }

    fn open(server: String) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way =
            Way { port: listener.local_addr().unwrap().port(), open: Arc::new(Mutex::new(Some(Vec::new()))) };
        let open = way.open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut open = open.lock().unwrap();
                let Some(open) = open.as_mut() else { continue };
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                for stream in [&client, &upstream] {
                    open.push(stream.try_clone().unwrap());
                }
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, client)]
                {
                    std::thread::spawn(move || {
                        copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        way
    }

    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().take().into_iter().flatten() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    pub(crate) fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}
