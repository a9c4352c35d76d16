use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::maps::settings::CookieKey;
use tests::clients::ask;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::tls::{self, Authority};
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use crate::agent::scene::{CONFIG, Scene, until};
use crate::held::Held;
use crate::process::RELEASE;

const NAME: &str = "a.example.com";
const VIP: &str = "192.0.2.5:443";

/// The content of the Secret: both keys, and which one makes cookies.
#[derive(Debug, PartialEq)]
struct Keys {
    cookies: [u128; 2],
    current: u32,
}

fn secret(scene: &Scene) -> Option<Keys> {
    let secret = scene.kubectl().get(&["-n", RELEASE, "secret", "vestibule-keys"]).ok()?;
    let data = |name: &str| base64(secret["data"][name].as_str().unwrap());
    let key = |name: &str| u128::from_le_bytes(data(name).try_into().unwrap());
    let current = String::from_utf8(data("current")).ok()?.parse().ok()?;
    Some(Keys { cookies: [key("cookie-0"), key("cookie-1")], current })
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| DIGITS.iter().position(|known| *known == byte).unwrap() as u32;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        bits = bits << 6 | digit(byte);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// Returns the keys with which the kernel makes and checks cookies.
fn in_maps(scene: &Scene) -> Option<Keys> {
    let maps = read::open(&Pins::new(scene.pins.path())).ok()?;
    let key = |place: u32| {
        let CookieKey { k0, k1 } = maps.cookie_keys.look_up(&place).ok()??;
        Some(u128::from(k1) << 64 | u128::from(k0))
    };
    let current = maps.settings.look_up(&0).ok()??.cookie_key;
    Some(Keys { cookies: [key(0)?, key(1)?], current })
}

/// Returns the copy on disk, which only root can read.
fn on_disk(file: &Path) -> Option<Keys> {
    let text = fs::read_to_string(file).ok()?;
    assert_eq!(fs::metadata(file).ok()?.mode() & 0o777, 0o600);
    let words: Vec<&str> = text.lines().nth(1)?.split(' ').collect();
    let key = |word: &str| u128::from_str_radix(word, 16).unwrap();
    Some(Keys { cookies: [key(words[0]), key(words[1])], current: words[2].parse().ok()? })
}

#[test]
fn keys_change_and_connections_go_on() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    let authority = Authority::new("a").unwrap();
    let config = authority.server_config(&authority.server(&[NAME]).unwrap()).unwrap();
    let at = "10.99.1.1:6443".parse().unwrap();
    let _server = Server::start(&scene.outside, at, "backend", Speech::Tls(config)).unwrap();
    let _controller = scene.controller("leader", &["--rotate-keys-every=8s", "--spread-keys-for=3s"]);
    let agent = scene.agent("first");
    let file = scene.folder.path().join("state/keys");
    until("keys are where they belong", &[&agent], || {
        let keys = secret(&scene);
        keys.is_some() && keys == in_maps(&scene) && keys == on_disk(&file)
    });
    let first = secret(&scene).unwrap();
    let config = authority.client_config(None).unwrap();
    let vip: SocketAddr = VIP.parse().unwrap();
    let connect = || scene.outside.run(|| tls::connect(vip, Arc::clone(&config), NAME));
    until("the tenant is served", &[&agent], || connect().is_ok());

    let mut held = Held::new(connect().unwrap());
    let begun = until_current(&scene, &first, &agent, || scene.outside.run(|| tls::dial(vip)).unwrap());
    let second = secret(&scene).unwrap();
    assert_ne!(second.current, first.current);
    let place = first.current as usize;
    assert_eq!(second.cookies[place], first.cookies[place], "the key of before is still good");
    assert_ne!(second.cookies[1 - place], first.cookies[1 - place]);
    until("agents have them", &[&agent], || {
        in_maps(&scene).as_ref() == Some(&second) && on_disk(&file).as_ref() == Some(&second)
    });
    // Its cookie was made with the previous key, and its hello arrives now.
    let late = tls::handshake(begun, Arc::clone(&config), NAME).unwrap();
    assert_eq!(ask(late).unwrap(), "backend -");
    assert_eq!(ask(connect().unwrap()).unwrap(), "backend -");
    held.holds();
    // The same with the keys swapped.
    until("keys change again", &[&agent], || {
        secret(&scene).is_some_and(|keys| keys.current == first.current)
    });
    until("the tenant is served", &[&agent], || connect().is_ok());
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// Waits until the other key makes cookies, and calls `begin` repeatedly. Returns its last result for which
/// the previous key still made the cookie.
fn until_current<T>(
    scene: &Scene,
    before: &Keys,
    agent: &crate::agent::scene::Agent,
    begin: impl Fn() -> T,
) -> T {
    let mut begun = begin();
    until("another key is current", &[agent], || {
        secret(scene).is_some_and(|keys| keys.cookies != before.cookies)
    });
    loop {
        let next = begin();
        if in_maps(scene).unwrap().current != before.current {
            return begun;
        }
        begun = next;
        std::thread::sleep(Duration::from_millis(100));
    }
}
