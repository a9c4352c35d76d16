//! Functions that the verifier checks once and separately, and loops.
//!
//! Inlined code is verified on each path that leads to it. A global function is verified once, for any
//! arguments. It takes the packet, parts of the working memory and numbers, five arguments at most, and
//! returns one number ([`Code`]).

use crate::exit::Exit;

/// A value that a separately verified function can return.
pub(crate) trait Code {
    /// Returns the value as a number.
    fn code(self) -> u32;
    /// Makes the value from a number of [`Code::code`].
    fn of(code: u32) -> Self;
}

impl Code for () {
    #[inline(always)]
    fn code(self) -> u32 {
        0
    }

    #[inline(always)]
    fn of(_: u32) -> Self {}
}

impl Code for u32 {
    #[inline(always)]
    fn code(self) -> u32 {
        self
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        code
    }
}

impl Code for bool {
    #[inline(always)]
    fn code(self) -> u32 {
        u32::from(self)
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        code == 1
    }
}

impl Code for Exit {
    #[inline(always)]
    fn code(self) -> u32 {
        Exit::number(self)
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        Exit::from_number(code)
    }
}

/// Code of "no exit, and true": continue. No exit has this code.
const GO_ON: u32 = u32::MAX;
/// Code of "no exit, but false".
const GO_ON_FALSE: u32 = u32::MAX - 1;

impl Code for Result<(), Exit> {
    #[inline(always)]
    fn code(self) -> u32 {
        match self {
            Ok(()) => GO_ON,
            Err(exit) => Exit::number(exit),
        }
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        if code == GO_ON { Ok(()) } else { Err(Exit::from_number(code)) }
    }
}

impl Code for Result<bool, Exit> {
    #[inline(always)]
    fn code(self) -> u32 {
        match self {
            Ok(true) => GO_ON,
            Ok(false) => GO_ON_FALSE,
            Err(exit) => Exit::number(exit),
        }
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            GO_ON => Ok(true),
            GO_ON_FALSE => Ok(false),
            code => Err(Exit::from_number(code)),
        }
    }
}

/// Makes a separately verified function, `name as symbol`. Its arguments are the packet of a context, parts
/// of the working memory, and numbers. The only context so far is `Skb` (TC).
///
/// ```text
/// verified! { fn name as symbol[Context packet](part: Part, ...; number: u32, ...) -> Result { body } }
/// ```
macro_rules! verified {
    ($(#[$meta:meta])* $vis:vis fn $name:ident as $symbol:ident
        $([$context:ty, $packet:ident])?
        ($($part:ident: $kind:ty),* $(; $($number:ident: $size:ty),*)?) -> $result:ty $body:block
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name(
            $($packet: $context,)? $($part: &mut $kind,)* $($($number: $size,)*)?
        ) -> $result {
            #[inline(always)]
            fn body($($packet: $context,)? $($part: &mut $kind,)* $($($number: $size,)*)?) -> $result $body

            #[inline(never)]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol(
                $($packet: *mut <$context as $crate::kernel::Context>::Raw,)?
                $($part: *mut $kind,)*
                $($($number: $size,)*)?
            ) -> u32 {
                // SAFETY: null is checked; otherwise the pointer is memory that the caller borrows
                // exclusively and the verifier tracks.
                $(let Some($part) = (unsafe { $part.as_mut() }) else { return 0 };)*
                $crate::verified::Code::code(body(
                    $(<$context as $crate::kernel::Context>::of($packet),)? $($part,)* $($($number,)*)?
                ))
            }
            $crate::verified::Code::of($symbol(
                $($crate::kernel::Context::raw($packet),)? $($part,)* $($($number,)*)?
            ))
        }
    };
}

/// Makes a loop of at most `times` rounds, whose body the verifier checks once. A round that returns `true` is the
/// last. The loop takes the same arguments as [`verified!`], preceded by at most one part that it only reads. The
/// position of the loop is kept in a part: on the stack, the verifier would follow each of its values.
///
/// ```text
/// looped! { fn name[Context packet](& read: Part, part: Part, ...; number: u32, ...) times 40, |round| { body } }
/// ```
macro_rules! looped {
    ($(#[$meta:meta])* $vis:vis fn $name:ident
        $([$context:ty, $packet:ident])?
        ($(& $read:ident: $of:ty,)? $($part:ident: $kind:ty),* $(; $($number:ident: $size:ty),*)?)
        times $times:expr, |$round:ident| $body:block
    ) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name(
            $($packet: $context,)? $($read: &$of,)? $($part: &mut $kind,)* $($($number: $size,)*)?
        ) {
            #[repr(C)]
            struct State {
                $($packet: *mut <$context as $crate::kernel::Context>::Raw,)?
                $($read: *const $of,)?
                $($part: *mut $kind,)*
                $($($number: $size,)*)?
            }

            #[inline(always)]
            fn body(
                $round: u32,
                $($packet: $context,)? $($read: &$of,)? $($part: &mut $kind,)* $($($number: $size,)*)?
            ) -> bool $body

            unsafe extern "C" fn step(round: u32, state: *mut core::ffi::c_void) -> i64 {
                // SAFETY: the only caller passes a `State` on its stack.
                let state = unsafe { &mut *state.cast::<State>() };
                // SAFETY: null is checked; otherwise the pointer is the caller's reference, see below.
                $(let Some($read) = (unsafe { state.$read.as_ref() }) else { return 1 };)?
                // SAFETY: as above.
                $(let Some($part) = (unsafe { state.$part.as_mut() }) else { return 1 };)*
                i64::from(body(
                    round,
                    $(<$context as $crate::kernel::Context>::of(state.$packet),)?
                    $($read,)?
                    $($part,)*
                    $($(state.$number,)*)?
                ))
            }

            let mut state = State {
                $($packet: $crate::kernel::Context::raw($packet),)?
                $($read,)?
                $($part,)*
                $($($number,)*)?
            };
            $crate::kernel::repeat($times, step, core::ptr::from_mut(&mut state).cast());
        }
    };
}

pub(crate) use {looped, verified};
