//! Secrets at rest: what the store keeps of signing secrets and callback credentials cannot be read without a key that is not in it.

use crate::error::{Error, Result};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::sync::Arc;

/// The form of a sealed text: `s1.<key>.<base64 of nonce, ciphertext and tag>`.
const FORM: &str = "s1";
const KEY_BYTES: usize = 32;

/// Keys that secrets are sealed and opened with. The first one seals, all of them open, so that keys can be replaced. Cheap to
/// clone; nothing shows the keys.
#[derive(Clone, Default)]
pub struct Keyring {
    keys: Arc<[Key]>,
}

/// A key, and the name under which sealed texts refer to it.
#[derive(Clone)]
struct Key {
    name: String,
    key: LessSafeKey,
}

impl Keyring {
    /// No keys: nothing can be sealed or opened, and the errors say how to change that.
    pub fn empty() -> Keyring {
        Keyring::default()
    }

    /// Keys of 32 bytes in base64, with commas between them. The first one is the current one.
    ///
    /// # Errors
    /// `Invalid` when one of them is not such a key; the error does not show it.
    pub fn parse(text: &str) -> Result<Keyring> {
        let keys = text.split(',').map(str::trim).filter(|it| !it.is_empty()).enumerate();
        let keys = keys.map(|(index, base64)| {
            let bytes = BASE64_STANDARD.decode(base64).ok().and_then(|bytes| bytes.try_into().ok());
            bytes.map(|bytes| Key::new(&bytes)).ok_or_else(|| {
                Error::invalid(
                    format!("key number {} of the secret keys is not the base64 of 32 bytes", index + 1),
                    "make one with: openssl rand -base64 32",
                )
            })
        });
        Ok(Keyring { keys: keys.collect::<Result<_>>()? })
    }

    /// A key made of a token that is there anyway. Who replaces the token must keep the old ring, or set the secrets anew.
    pub fn derived(root_token: &str) -> Keyring {
        Keyring { keys: Arc::new([Key::new(&derive(root_token.as_bytes(), b"secrets at rest"))]) }
    }

    /// Opens also what `former` has sealed.
    #[must_use]
    pub fn or(self, former: &Keyring) -> Keyring {
        Keyring { keys: self.keys.iter().chain(former.keys.iter()).cloned().collect() }
    }

    /// Seals with the current key. `purpose` says whose secret it is (`subscription/emails/secret`), and is needed to open it:
    /// a sealed text that somebody with access to the store copies to another place does not open there.
    ///
    /// # Errors
    /// `Invalid` when there is no key.
    pub fn seal(&self, purpose: &str, plain: &[u8]) -> Result<String> {
        let Some(key) = self.keys.first() else { return Err(no_key()) };
        // Random nonces of 96 bits are good for four thousand million texts per key; there are as many as there are secrets.
        let mut sealed = vec![0; NONCE_LEN];
        SystemRandom::new().fill(&mut sealed).map_err(|_| no_random())?;
        let nonce = Nonce::try_assume_unique_for_key(&sealed).map_err(|_| no_random())?;
        let mut text = plain.to_vec();
        key.key
            .seal_in_place_append_tag(nonce, key.aad(purpose), &mut text)
            .map_err(|_| Error::invalid("the secret is too long to be sealed", "use a shorter one"))?;
        sealed.append(&mut text);
        Ok(format!("{FORM}.{}.{}", key.name, BASE64_URL_SAFE_NO_PAD.encode(sealed)))
    }

    /// Opens what was sealed for the same purpose.
    ///
    /// # Errors
    /// `Invalid` when the key is not here, when it was sealed for something else, or when it was changed.
    pub fn open(&self, purpose: &str, sealed: &str) -> Result<Vec<u8>> {
        let (name, base64) = parts(sealed).ok_or_else(unreadable)?;
        if self.keys.is_empty() {
            return Err(no_key());
        }
        let key = self.keys.iter().find(|key| key.name == name).ok_or_else(|| {
            Error::invalid(
                format!("the secret was sealed with the key {name}, which is not here"),
                "add the former key to TRAMLINE_SECRET_KEY, after the current one and a comma",
            )
        })?;
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(base64).map_err(|_| unreadable())?;
        let (nonce, text) = bytes.split_at_mut_checked(NONCE_LEN).ok_or_else(unreadable)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| unreadable())?;
        let plain = key.key.open_in_place(nonce, key.aad(purpose), text).map_err(|_| unreadable())?;
        Ok(plain.to_vec())
    }

    /// False for what was sealed with a former key, and should be sealed again.
    pub fn is_current(&self, sealed: &str) -> bool {
        let current = self.keys.first();
        parts(sealed).zip(current).is_some_and(|((name, _), current)| name == current.name)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Key {
        // A name that is derived, not cut off, tells nothing of the key.
        let name = derive(bytes, b"name of the key")[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("AES-256 takes 32 bytes");
        Key { name, key: LessSafeKey::new(key) }
    }

    fn aad(&self, purpose: &str) -> Aad<Vec<u8>> {
        Aad::from(format!("{FORM}.{}.{purpose}", self.name).into_bytes())
    }
}

/// HKDF-SHA256: other bytes of the same secret, from which the secret cannot be found.
fn derive(secret: &[u8], purpose: &[u8]) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    hkdf::Salt::new(hkdf::HKDF_SHA256, b"tramline")
        .extract(secret)
        .expand(&[purpose], hkdf::HKDF_SHA256)
        .and_then(|derived| derived.fill(&mut bytes))
        .expect("a hash is as long as a hash");
    bytes
}

/// The name of the key, and what was sealed with it.
fn parts(sealed: &str) -> Option<(&str, &str)> {
    sealed.strip_prefix(FORM)?.strip_prefix('.')?.split_once('.')
}

fn no_key() -> Error {
    Error::invalid(
        "there is no key to keep secrets with",
        "set TRAMLINE_SECRET_KEY, for example to the output of: openssl rand -base64 32",
    )
}

fn unreadable() -> Error {
    Error::invalid(
        "the secret cannot be opened: it was changed, or sealed for something else",
        "set the secret again",
    )
}

fn no_random() -> Error {
    Error::unavailable("the system has no random numbers", "check the system")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const TWO: &str = "Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=";

    fn ring(text: &str) -> Keyring {
        Keyring::parse(text).unwrap()
    }

    #[test]
    fn a_secret_is_opened_for_the_purpose_that_it_was_sealed_for() {
        let sealed = ring(ONE).seal("a/secret", b"whsec_x").unwrap();
        assert!(sealed.starts_with("s1.") && !sealed.contains("whsec"), "{sealed}");
        assert_eq!(ring(ONE).open("a/secret", &sealed).unwrap(), b"whsec_x");
        assert!(ring(ONE).open("b/secret", &sealed).is_err());
    }

    #[test]
    fn the_same_secret_is_never_sealed_to_the_same_text() {
        let ring = ring(ONE);
        assert_ne!(ring.seal("p", b"x").unwrap(), ring.seal("p", b"x").unwrap());
    }

    #[test]
    fn a_former_key_opens_but_does_not_seal() {
        let old = ring(ONE).seal("p", b"x").unwrap();
        let both = ring(&format!(" {TWO} , {ONE}"));
        assert_eq!(both.open("p", &old).unwrap(), b"x");
        assert!(!both.is_current(&old) && ring(ONE).is_current(&old));
        let new = both.seal("p", b"x").unwrap();
        assert!(both.is_current(&new) && ring(TWO).is_current(&new));
        let error = ring(TWO).open("p", &old).unwrap_err();
        assert!(error.remedy().contains("former key"), "{error}");
    }

    #[test]
    fn a_key_made_of_a_token_can_be_replaced_by_a_real_one() {
        let derived = Keyring::derived("root");
        let sealed = derived.seal("p", b"x").unwrap();
        assert_eq!(Keyring::derived("root").open("p", &sealed).unwrap(), b"x");
        assert!(Keyring::derived("other").open("p", &sealed).is_err());
        let both = ring(ONE).or(&derived);
        assert_eq!(both.open("p", &sealed).unwrap(), b"x");
        assert!(!both.is_current(&sealed));
    }

    #[test]
    fn without_a_key_the_error_says_how_to_make_one() {
        let error = Keyring::empty().seal("p", b"x").unwrap_err();
        assert!(error.to_string().contains("openssl rand -base64 32"), "{error}");
        let sealed = ring(ONE).seal("p", b"x").unwrap();
        assert!(ring("").open("p", &sealed).unwrap_err().to_string().contains("TRAMLINE_SECRET_KEY"));
        assert!(!Keyring::empty().is_current(&sealed));
    }

    #[test]
    fn a_key_that_is_none_is_refused_and_not_repeated() {
        for text in ["x", "AAECAwQ=", "!", &format!("{ONE},{}", &ONE[..40]), &format!("{ONE};{TWO}")] {
            let error = Keyring::parse(text).expect_err(text).to_string();
            assert!(!error.contains(text) && error.contains("key number"), "{error}");
        }
    }

    #[test]
    fn debugging_shows_no_key() {
        assert_eq!(format!("{:?}", ring(&format!("{ONE},{TWO}"))), "Keyring(2 keys)");
    }

    #[test]
    fn what_was_never_sealed_is_refused() {
        let name = ring(ONE).seal("p", b"").unwrap()[3..11].to_owned();
        for text in
            ["", "s1", "s1.", "s1..", "s2.x.y", &format!("s1.{name}."), &format!("s1.{name}.AAAA"), "plain"]
        {
            assert!(ring(ONE).open("p", text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_change_is_noticed(plain in proptest::collection::vec(any::<u8>(), 0..100), at in 0..200usize, to in "[ -~]") {
            let ring = ring(ONE);
            let sealed = ring.seal("p", &plain).unwrap();
            prop_assert_eq!(&ring.open("p", &sealed).unwrap(), &plain);
            let at = at % sealed.len();
            let changed = format!("{}{to}{}", &sealed[..at], &sealed[at + 1..]);
            prop_assume!(changed != sealed);
            prop_assert!(ring.open("p", &changed).is_err());
        }
    }
}
