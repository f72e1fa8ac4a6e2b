//! Follows a router's event stream, and reconnects when it is lost.

use std::sync::Arc;
use std::time::Duration;

use maitre_views::decision::DecisionList;
use tokio::sync::mpsc;

use super::model::{DECISIONS_MAX, RouterSnapshot, Update};
use crate::operator::client::Client;
use crate::operator::sse::SseEvent;
use crate::operator::trouble::Trouble;

/// The first pause before a reconnect, and the longest. Chosen: short enough for a restart, long enough to cost nothing.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The router now.
pub(super) async fn snapshot(client: &Client) -> Result<RouterSnapshot, Trouble> {
    let recent = format!("/admin/v1/decisions?limit={DECISIONS_MAX}");
    Ok(RouterSnapshot {
        overview: client.get("/admin/v1/overview").await?,
        decisions: client.get::<DecisionList>(&recent).await?.decisions,
        history: client.get("/admin/v1/history").await?,
    })
}

/// Sends updates until the receiver is dropped.
pub(super) async fn follow(client: Arc<Client>, updates: mpsc::Sender<Update>) {
    let mut pause = PAUSE_MIN;
    let mut is_back = false;
    while !updates.is_closed() {
        let why = match listen(&client, &updates, is_back, &mut pause).await {
            Ok(()) => return,
            Err(why) => why,
        };
        if updates.send(Update::Lost(why, pause)).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        (pause, is_back) = (longer(pause), true);
    }
}

/// One stream, to its end; no error once the receiver is dropped.
async fn listen(
    client: &Client,
    updates: &mpsc::Sender<Update>,
    is_back: bool,
    pause: &mut Duration,
) -> Result<(), Trouble> {
    let mut live = client.live().await?;
    if is_back {
        // What was missed in the meantime.
        let snapshot = Update::Snapshot(Box::new(snapshot(client).await?));
        if updates.send(snapshot).await.is_err() {
            return Ok(());
        }
    }
    loop {
        for event in client.next(&mut live).await? {
            let Some(update) = read(client, &event)? else { continue };
            *pause = PAUSE_MIN;
            if updates.send(update).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// An event as an update; none for an event of a newer router.
fn read(client: &Client, event: &SseEvent) -> Result<Option<Update>, Trouble> {
    Ok(match event.name.as_str() {
        "overview" => Some(Update::Overview(Box::new(client.read(event.data.as_bytes())?))),
        "decisions" => Some(Update::Decisions(client.read(event.data.as_bytes())?)),
        _ => None,
    })
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}
