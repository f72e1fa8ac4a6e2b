//! Lines in, requests out, and what a bad line says.

use super::*;

fn read(text: &str) -> Result<Trace, String> {
    Trace::read(text.as_bytes()).map_err(|it| it.to_string())
}

fn seconds(trace: &Trace) -> Vec<f64> {
    trace.requests.iter().map(|it| it.at.as_secs_f64()).collect()
}

#[test]
fn mooncake_blocks_become_pieces() {
    let trace =
        read(r#"{"timestamp": 0, "input_length": 700, "output_length": 0, "hash_ids": [4, 9]}"#).unwrap();
    let request = &trace.requests[0];
    assert_eq!(*request.prompt, [Piece { text: 4, tokens: 512 }, Piece { text: 9, tokens: 188 }]);
    assert_eq!((request.prompt_tokens(), request.answer_tokens), (700, 1));
}

#[test]
fn unnamed_texts_are_unique() {
    let line = r#"{"timestamp":0,"input_length":100,"output_length":5,"hash_ids":[1],"block_size":64}"#;
    let trace = read(&format!("{line}\n{line}\n")).unwrap();
    let [one, other] = &trace.requests[..] else { panic!("two requests") };
    assert_eq!(one.prompt[0], other.prompt[0]);
    assert_eq!(one.prompt[1].tokens, 36);
    assert_ne!(one.prompt[1].text, other.prompt[1].text);
    assert_ne!(one.answer, other.answer);
}

#[test]
fn requests_stamped_alike_are_spread() {
    let row = |at: u32| format!(r#"{{"timestamp":{at},"input_length":9,"output_length":5}}"#);
    let trace = read(&[row(3_000), row(0), row(0), row(0), row(3_000)].join("\n")).unwrap();
    assert_eq!(seconds(&trace), [0.0, 1.0, 2.0, 3.0, 4.5]);
    let alone = read(&row(700)).unwrap();
    assert_eq!(seconds(&alone), [0.7]);
}

#[test]
fn our_own_format_round_trips() {
    let text = concat!(
        r#"{"timestamp":0.25,"output_length":52,"prompt":[[7,2000],[31,155]],"answer":32,"session":5}"#,
        "\n",
        r#"{"timestamp":12.5,"output_length":9,"prompt":[[7,2000],[31,155],[32,52],[33,9]],"answer":34,"part":2}"#,
    );
    let trace = read(text).unwrap();
    let mut written = Vec::new();
    trace.write(&mut written).unwrap();
    assert_eq!(Trace::read(&written[..]).unwrap(), trace);
    assert_eq!(trace.requests[1].prompt_tokens(), 2_216);
}

#[test]
fn an_observed_answer_round_trips() {
    let line = |more: &str| format!(r#"{{"timestamp":0,"input_length":900,"output_length":5{more}}}"#);
    let millis = Duration::from_micros;
    let observed =
        |first_token, total, cached_tokens| Some(ObservedAnswer { first_token, total, cached_tokens });
    for (more, expected) in [
        ("", None),
        // An answer that is not complete.
        (r#","ttft_ms":5"#, None),
        (r#","ttft_ms":812.113,"e2e_ms":2034.9"#, observed(Some(millis(812_113)), millis(2_034_900), None)),
        (r#","e2e_ms":0,"cached_length":900"#, observed(None, Duration::ZERO, Some(900))),
    ] {
        let trace = read(&line(more)).unwrap();
        assert_eq!(trace.requests[0].observed.as_deref().copied(), expected, "{more}");
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        assert_eq!(Trace::read(&written[..]).unwrap(), trace, "{more}");
    }
    for (more, expected) in [
        (r#","e2e_ms":-1"#, "`e2e_ms` is -1; milliseconds from 0"),
        (r#","e2e_ms":86400001"#, "up to a day"),
        (r#","ttft_ms":-5,"e2e_ms":9"#, "`ttft_ms` is -5"),
        (r#","ttft_ms":10,"e2e_ms":9"#, "the first token cannot come after the last"),
        (r#","e2e_ms":9,"cached_length":901"#, "`cached_length` is 901, but the prompt has 900 tokens"),
    ] {
        let error = read(&line(more)).unwrap_err();
        assert!(error.contains(expected), "{more}: {error}");
    }
}

#[test]
fn class_tenant_and_deadline_round_trip() {
    let line = |more: &str| format!(r#"{{"timestamp":0,"input_length":9,"output_length":5{more}}}"#);
    for (more, class, tenant, deadline_us) in [
        ("", None, 0, None),
        (r#","class":"interactive""#, Some("interactive"), 0, None),
        (r#","tenant":17,"deadline_ms":1000"#, None, 17, Some(1_000_000)),
        (r#","tenant":18446744073709551615"#, None, u64::MAX, None),
        (r#","class":"größer","tenant":"acme""#, Some("größer"), hash::bytes(0, b"acme"), None),
        (r#","deadline_ms":0.5"#, None, 0, Some(500)),
        (r#","deadline_ms":86400000"#, None, 0, Some(86_400_000_000)),
    ] {
        let trace = read(&line(more)).unwrap_or_else(|error| panic!("{more}: {error}"));
        let request = &trace.requests[0];
        assert_eq!((request.class.as_deref(), request.tenant), (class, tenant), "{more}");
        assert_eq!(request.deadline, deadline_us.map(Duration::from_micros), "{more}");
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        assert_eq!(Trace::read(&written[..]).unwrap(), trace, "{more}");
        let written = String::from_utf8(written).unwrap();
        // A name is written as the number it became; everything else unchanged.
        assert!(more.contains("acme") || written.trim_end().ends_with(&format!("{more}}}")), "{written}");
    }
}

#[test]
fn requests_of_a_class_share_its_name_and_there_are_not_too_many() {
    let line = |class: usize| {
        format!("{{\"timestamp\":0,\"input_length\":9,\"output_length\":5,\"class\":\"c{class}\"}}\n")
    };
    let trace = read(&[line(1), line(2), line(1)].concat()).unwrap();
    let class = |number: usize| trace.requests[number].class.as_ref().unwrap();
    assert!(Arc::ptr_eq(class(0), class(2)) && class(0) != class(1));
    assert!(read(&(0..64).map(line).collect::<String>()).is_ok());
    let error = read(&(0..65).map(line).collect::<String>()).unwrap_err();
    assert_eq!(error, "line 65: `class` is \"c64\", and 64 others came before; no more are allowed");
}

#[test]
fn gzip_is_read_as_well() {
    let line = br#"{"timestamp":0,"input_length":9,"output_length":5}"#;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(line).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(Trace::read(&packed[..]).unwrap(), Trace::read(&line[..]).unwrap());
    for length in [3, packed.len() / 2] {
        let cut = Trace::read(&packed[..length]).unwrap_err().to_string();
        assert!(cut.starts_with("its gzip data is cut off or damaged: "), "{cut}");
    }
}

#[test]
fn a_bad_line_is_named() {
    for (line, expected) in [
        ("{", "line 2: not a request"),
        (
            "timestamp,input_length",
            "line 2: not a JSON object; a trace has one on each line, such as {\"timestamp\":0,",
        ),
        ("[{\"timestamp\":0}]", "line 2: not a JSON object"),
        (r#"{"timestamp":1}"#, "line 2: not a request: missing field `output_length`, column 15"),
        (r#"{"timestamp":-1,"input_length":9,"output_length":5}"#, "`timestamp` is -1"),
        (r#"{"timestamp":1.7e12,"input_length":9,"output_length":5}"#, "up to a year"),
        (r#"{"timestamp":0,"input_length":0,"output_length":5}"#, "a prompt of 0 tokens"),
        (r#"{"timestamp":0,"input_length":99000000000,"output_length":5}"#, "a prompt of 99000000000 tokens"),
        (r#"{"timestamp":0,"input_length":9,"output_length":2000000}"#, "an answer of 2000000 tokens"),
        (r#"{"timestamp":0,"output_length":2}"#, "neither"),
        (r#"{"timestamp":0,"input_length":9,"output_length":2,"block_size":0}"#, "`block_size` is zero"),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"hash_ids":[1,2]}"#,
            "`hash_ids` names 2 blocks of 512 tokens, but `input_length` is 9",
        ),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"prompt":[[1,8]]}"#,
            "`input_length` is 9, but the pieces of `prompt` have 8 tokens",
        ),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"class":""}"#,
            "`class` is \"\"; a name of 1 to 64",
        ),
        (r#"{"timestamp":0,"input_length":9,"output_length":2,"class":"a\tb"}"#, "`class` is \"a\\tb\""),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"tenant":-1}"#,
            "`tenant` is -1; a whole number",
        ),
        (r#"{"timestamp":0,"input_length":9,"output_length":2,"tenant":""}"#, "`tenant` is \"\""),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"deadline_ms":0}"#,
            "`deadline_ms` is 0; milli",
        ),
        (r#"{"timestamp":0,"input_length":9,"output_length":2,"deadline_ms":-5}"#, "`deadline_ms` is -5"),
        (
            r#"{"timestamp":0,"input_length":9,"output_length":2,"deadline_ms":86400001}"#,
            "up to a day are expected",
        ),
        (r#"{"timestamp":0,"input_length":9,"output_length":2,"deadline_ms":"1s"}"#, "not a request"),
    ] {
        let good = r#"{"timestamp":0,"input_length":9,"output_length":5}"#;
        let error = read(&format!("{good}\n{line}\n")).unwrap_err();
        assert!(error.starts_with("line 2: ") && error.contains(expected), "{line}: {error}");
    }
    let long =
        format!(r#"{{"timestamp":0,"input_length":9,"output_length":2,"class":"{}"}}"#, "x".repeat(65));
    assert!(read(&long).unwrap_err().contains("a name of 1 to 64 characters is expected"));
    assert_eq!(read("\n\n").unwrap_err(), "it contains no requests");
    assert!(read(&"x".repeat(LINE_BYTES_MAX as usize + 1)).unwrap_err().contains("line 1 is longer"));
}

#[test]
fn text_is_read_as_the_same_tokens() {
    let trace = read(r#"{"timestamp":0,"output_length":5,"prompt":[[7,20],[31,3]]}"#).unwrap();
    let (mut tokens, mut prompt) = (Vec::new(), text::Prompt::default());
    trace.requests[0].write_tokens(&mut tokens);
    prompt.text(&trace.requests[0].prompt_text());
    assert_eq!(tokens, prompt.into_tokens());
    assert_eq!(tokens.len(), 23);
}
