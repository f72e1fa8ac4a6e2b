//! Hears a router's event stream for as long as anybody listens, and comes back when it is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::state::{DECISIONS_MAX, News, Picture};
use crate::operator::client::Client;
use crate::operator::sse::Event;
use crate::operator::trouble::Trouble;

/// The first pause after a loss, and the longest. Chosen: a router that is restarted is back on the screen at once,
/// and one that is gone costs nobody anything.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// All that is known now.
pub(super) async fn picture(client: &Client) -> Result<Picture, Trouble> {
    Ok(Picture {
        overview: client.get("/admin/v1/overview").await?,
        decisions: client.get(&format!("/admin/v1/decisions?limit={DECISIONS_MAX}")).await?,
        history: client.get("/admin/v1/history").await?,
    })
}

/// Tells all that is new, until nobody listens.
pub(super) async fn follow(client: Arc<Client>, tell: mpsc::Sender<News>) {
    let mut pause = PAUSE_MIN;
    let mut is_back = false;
    while !tell.is_closed() {
        let why = match listen(&client, &tell, is_back, &mut pause).await {
            Ok(()) => return,
            Err(why) => why,
        };
        if tell.send(News::Lost(why, pause)).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        (pause, is_back) = (longer(pause), true);
    }
}

/// One stream, to its end; no error if nobody listens any more.
async fn listen(
    client: &Client,
    tell: &mpsc::Sender<News>,
    is_back: bool,
    pause: &mut Duration,
) -> Result<(), Trouble> {
    let mut live = client.live().await?;
    if is_back {
        // What was missed.
        let picture = News::Picture(Box::new(picture(client).await?));
        if tell.send(picture).await.is_err() {
            return Ok(());
        }
    }
    loop {
        for event in client.next(&mut live).await? {
            let Some(news) = read(client, &event)? else { continue };
            *pause = PAUSE_MIN;
            if tell.send(news).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// An event as news; none for a kind that a newer router has.
fn read(client: &Client, event: &Event) -> Result<Option<News>, Trouble> {
    Ok(match event.name.as_str() {
        "overview" => Some(News::Overview(Box::new(client.read(event.data.as_bytes())?))),
        "decisions" => Some(News::Decisions(client.read(event.data.as_bytes())?)),
        _ => None,
    })
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}
