//! Routes of an API of others as they are gathered: the router, and the list that tests compare with.

use crate::http::app::Shared;
use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};

/// Routes as they are gathered.
#[derive(Default)]
pub(super) struct Served {
    pub(super) router: Router<Shared>,
    pub(super) list: Vec<(Method, &'static str)>,
}

impl Served {
    pub(super) fn on<H: Handler<T, Shared>, T: 'static>(
        mut self,
        method: Method,
        path: &'static str,
        handler: H,
    ) -> Served {
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::POST);
        self.router = self.router.route(path, on(filter, handler));
        self.list.push((method, path));
        self
    }
}
