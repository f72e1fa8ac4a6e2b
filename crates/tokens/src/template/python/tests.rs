//! Each expectation is what Python 3.11 prints.

use minijinja::Environment;

use super::*;

fn render(source: &str, json: &str) -> Result<String, Error> {
    let mut environment = Environment::new();
    teach(&mut environment);
    let value = crate::json::read(json).expect("the test's own JSON");
    environment.render_str(source, Value::from_pairs([("x", value)]))
}

#[track_caller]
fn check(source: &str, json: &str, expected: &str) {
    assert_eq!(render(source, json).expect("the test's own template"), expected, "{source} of {json}");
}

#[test]
fn tojson_is_json_dumps() {
    check(
        "{{ x | tojson }}",
        r#"{"b":1,"a":[1,2.0,true,null,"é\"\n\u0001<>&"]}"#,
        r#"{"b": 1, "a": [1, 2.0, true, null, "é\"\n\u0001<>&"]}"#,
    );
    check("{{ x | tojson }}", r#"[[],{},""]"#, r#"[[], {}, ""]"#);
    check(
        "{{ x | tojson(indent=2) }}",
        r#"{"a":[1,{}],"b":[]}"#,
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
    );
    check("{{ x | tojson(separators=(',', ':')) }}", r#"{"a":[1,2]}"#, r#"{"a":[1,2]}"#);
    check("{{ x | tojson(sort_keys=true) }}", r#"{"b":1,"a":2}"#, r#"{"a": 2, "b": 1}"#);
    check("{{ x | tojson(ensure_ascii=true) }}", r#""é🙂""#, r#""\u00e9\ud83d\ude42""#);
    check("{{ x | tojson }}", "\"\u{7f}\u{2028}/\"", "\"\u{7f}\u{2028}/\"");
}

#[test]
fn floats_print_as_python_prints_them() {
    check(
        "{{ x | tojson }}",
        "[0.1, 1e5, 1e15, 1e16, 1.5e16, 1e22, 1e-4, 1e-5, 1.5e-7, -0.0, 123456789.125, 1e300]",
        "[0.1, 100000.0, 1000000000000000.0, 1e+16, 1.5e+16, 1e+22, 0.0001, 1e-05, 1.5e-07, -0.0, 123456789.125, 1e+300]",
    );
    check(
        "{{ x | tojson }}",
        "[18446744073709551615, -9223372036854775808]",
        "[18446744073709551615, -9223372036854775808]",
    );
}

#[test]
fn strings_have_pythons_methods() {
    check("{{ x.strip() }}|", r#""\u001c \n a b \u001f\u3000""#, "a b|");
    check("{{ x | trim }}|", r#""\u001f a ""#, "a|");
    check("{{ x.strip('ab') }}|", r#""abcab""#, "c|");
    check("{{ x.lstrip('\n') }}|{{ x.rstrip() }}|", r#""\n a \n""#, " a \n|\n a|");
    check("{{ x.split() }}", r#""  a b\u001cc ""#, "['a', 'b', 'c']");
    check(
        "{{ x.split(',') }}{{ x.split(',', 1) }}{{ x.rsplit(',', 1) }}",
        r#""a,b,""#,
        "['a', 'b', '']['a', 'b,']['a,b', '']",
    );
    check("{{ x.split(none, 1) }}", r#"" a  b c ""#, "['a', 'b c ']");
    check("{{ x.split('</think>')[-1].lstrip('\n') }}", r#""t</think>\n\nanswer""#, "answer");
    check("{{ x.splitlines() }}", r#""a\r\nb\u000bc\n\nd\n""#, "['a', 'b', 'c', '', 'd']");
    check("{{ x.removeprefix('a') }}{{ x.removesuffix('c') }}{{ x.partition('b')[2] }}", r#""abc""#, "bcabc");
    check("{{ x.startswith('a') and x.endswith('c') }}", r#""abc""#, "True");
    check("{{ x.replace('b', '-').upper() }}", r#""abc""#, "A-C");
}

#[test]
fn maps_have_pythons_methods_even_where_a_member_has_their_name() {
    check(
        "{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}",
        r#"{"items": 1, "b": 2}"#,
        "items=1;b=2;",
    );
    check("{{ x.get('a', 'none') }}{{ x.get('b') }}", r#"{"c": 1}"#, "noneNone");
    check("{{ x.keys() | list }}", r#"{"b": 1, "a": 2}"#, "['b', 'a']");
}

#[test]
fn tests_work_as_in_python() {
    check(
        "{{ x is sequence }}{{ x is iterable }}{{ x is mapping }}{{ x is string }}",
        r#""a""#,
        "TrueTrueFalseTrue",
    );
    check("{{ x is sequence }}{{ x is iterable }}{{ x is mapping }}", "{}", "TrueTrueTrue");
    check("{{ x is sequence }}{{ x is iterable }}{{ x is number }}", "1", "FalseFalseTrue");
    check("{{ x is none }}{{ x is defined }}{{ y is defined }}", "null", "TrueTrueFalse");
}

#[test]
fn values_print_as_python_prints_them() {
    check("{{ x }}", r#"[true, null, "a'b", 1.5, {"k": "v"}]"#, r#"[True, None, "a'b", 1.5, {'k': 'v'}]"#);
    check("{{ 'a' ~ x }}", "true", "aTrue");
}

#[test]
fn raise_exception_carries_its_words() {
    let error = render("{{ raise_exception('no ' ~ x) }}", "1").expect_err("it raises");
    assert_eq!(refusal(&error).as_deref(), Some("no 1"));
}

#[test]
fn very_large_and_very_small_numbers_print_with_exponents() {
    check("{{ x }} {{ x | string }} {{ 'a' ~ x }} {{ [x] }}", "1e16", "1e+16 1e+16 a1e+16 [1e+16]");
    check("{{ x }} {{ x | tojson }}", r#"{"a": 1e-5}"#, "{'a': 1e-05} {\"a\": 1e-05}");
    check(
        "{{ x is number }}{{ x is float }}{{ x is integer }}{{ x is string }}",
        "1e16",
        "TrueTrueFalseFalse",
    );
    assert!(render("{{ x + 1 }}", "1e16").is_err(), "an error, not another number");
}

#[test]
fn indent_is_jinja2s() {
    check("{{ x | indent(4, first=true) }}|", r#""{\n""#, "    {\n|");
    check("{{ x | indent(2) }}|", r#""a\n\nb""#, "a\n\n  b|");
    check("{{ x | indent(width='> ', first=true, blank=true) }}|", r#""a\n\nb""#, "> a\n> \n> b|");
}

#[test]
fn undefined_values_are_empty() {
    check("{{ y | length }}{{ x.z | count }}{% for a, b in x.z | items %}{% endfor %}", "{}", "00");
    check("{{ x | length }}{{ 'äö' | length }}", "[1]", "12");
    assert!(render("{{ x | length }}", "null").is_err());
}

#[test]
fn tags_are_read_as_jinja2_reads_them() {
    #[track_caller]
    fn rewritten(source: &str, expected: &str) {
        assert_eq!(in_our_tags(source), expected, "{source}");
    }
    rewritten(
        "a{%- generation -%}b{% endgeneration %}{{ generation }}",
        "a{%- with -%}b{% endwith %}{{ generation }}",
    );
    rewritten("{% raw %}\na{% endraw %}", "{% raw %}\n\na{% endraw %}");
    rewritten("{% raw -%}\na{%+ endraw %}", "{% raw -%}\na{%+ endraw %}");
    rewritten("{% broken", "{% broken");
}

#[test]
fn adding_to_a_safe_text_is_noticed() {
    assert!(adds_to_safe("{{ 'a' | safe + b }}"));
    assert!(!adds_to_safe("{{ a | tojson | safe }}{{ (a | safe) ~ b }}"));
}
