//! Enums of words: one list of the values, their order and their names.

/// Declares an enum, `ALL` of its values in order, and `name`, the word that stands for each in settings, labels and
/// output.
#[macro_export]
macro_rules! words {
    (
        $(#[$of_enum:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_value:meta])* $value:ident = $word:literal,)*
        }
    ) => {
        $(#[$of_enum])*
        $visibility enum $name {
            $($(#[$of_value])* $value,)*
        }

        impl $name {
            $visibility const ALL: [$name; [$($word),*].len()] = [$($name::$value),*];

            $visibility const fn name(self) -> &'static str {
                match self {
                    $($name::$value => $word,)*
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    words! {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum Meal {
            /// Before noon.
            Breakfast = "breakfast",
            LateSupper = "late-supper",
        }
    }

    #[test]
    fn values_are_listed_in_order_with_their_words() {
        assert_eq!(Meal::ALL, [Meal::Breakfast, Meal::LateSupper]);
        assert_eq!(Meal::ALL.map(Meal::name), ["breakfast", "late-supper"]);
    }
}
