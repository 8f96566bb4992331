// Tests of reading a config: each mistake names file, line, path and hint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::HasSubstr;

// One mistake each: where it is reported, what about, and which hint.
struct Mistake {
  std::string text, where, what, hint;
};

void expect_errors(const std::vector<Mistake>& mistakes) {
  for (const Mistake& m : mistakes) {
    const std::string error = error_of(m.text);
    EXPECT_THAT(error, HasSubstr(m.where)) << m.text;
    EXPECT_THAT(error, HasSubstr(m.what)) << m.text;
    EXPECT_THAT(error, HasSubstr("hint: ")) << m.text;
    EXPECT_THAT(error, HasSubstr(m.hint)) << m.text;
  }
}

TEST(ConfigMistakes, OneHintForSeveralInARow) {
  const std::string error =
      error_of(with(R"("measure": { "warmup": "a", "min_samples": "b", "target_ci": "c" })"));
  EXPECT_THAT(error, HasSubstr("warmup: must be an integer, is \"a\"\ndir/x.json:3: measure.min_"
                               "samples: must be an integer, is \"b\"\n  hint: "));
  EXPECT_THAT(error, testing::EndsWith("  hint: write it without quotes"));
}

TEST(ConfigMistakes, TheModelAndTheRun) {
  expect_errors({
      {with(R"("modle": {})"), "dir/x.json:3: modle:", "unknown key", "did you mean 'model'?"},
      {with(R"("model": { "head": 3 })"), "dir/x.json:3: model.head:", "unknown key",
       "did you mean 'heads'?"},
      {with(R"("run": { "kernel": "gpu" })"), "dir/x.json:3: run.kernel:", "'gpu' is not known",
       "did you mean 'cpu'?"},
      {with(R"("run": { "kernel": "tensor" })"), "dir/x.json:3: run.kernel:", "is not known",
       "known: cpu, reference"},
      {with(R"("run": { "mode": "virtul" })"), "dir/x.json:3: run.mode:", "'virtul' is not known",
       "did you mean 'virtual'?"},
      {with(R"("run": { "mode": "simulated" })"), "dir/x.json:3: run.mode:", "is not known",
       "known: real, virtual"},
      {with(R"("run": { "transport": "virtual" })"),
       "dir/x.json:3: run.transport:", "'virtual' is a mode", "write \"mode\": \"virtual\""},
      {with(R"("virtual": { "sample_share": 0 })"),
       "dir/x.json:3: virtual.sample_share:", "must be", ""},
      {with(R"("virtual": { "latency_s": 1 })"), "dir/x.json:3: virtual.bytes_per_s:", "is missing",
       "both or none"},
      {with(R"("model": { "dtype": "fp16" })"), "dir/x.json:3: model.dtype:", "'fp16' is not known",
       "known: fp32, bf16"},
      {with(R"("model": { "heads": -1 })"), "dir/x.json:3: model.heads:", "at least 1, is -1",
       "use 1 or more"},
      {with(R"("model": { "heads": 0 })"), "dir/x.json:3: model.heads:", "at least 1, is 0",
       "use 1 or more"},
      {with(R"("model": { "heads": 1.5 })"), "dir/x.json:3: model.heads:", "an integer, is 1.5",
       "whole number"},
      {with(R"("model": { "heads": "many" })"),
       "dir/x.json:3: model.heads:", "must be an integer, is \"many\"", "without quotes"},
      {with(R"("model": { "heads": 12, "kv_heads": 5 })"),
       "dir/x.json:3: model.kv_heads:", "must divide the 12 heads, is 5", "divisor"},
      {with(R"("model": { "head_dim": 60 })"),
       "dir/x.json:3: model.head_dim:", "multiple of 8, is 60", "64"},
      {with(R"("model": { "head_dim": 264 })"),
       "dir/x.json:3: model.head_dim:", "at most 256, is 264", "use 256 or less"},
      {with(R"("model": { "causal": "yes" })"),
       "dir/x.json:3: model.causal:", "true or false, is \"yes\"", "without quotes"},
      {with(R"("model": 3)"), "dir/x.json:3: model:", "must be an object, is an integer",
       "{ \"key\""},
  });
}

TEST(ConfigMistakes, Axes) {
  expect_errors({
      {with("", R"("algorithm": "rnig", "seq_len": 8)"),
       "dir/x.json:2: sweep.algorithm:", "'rnig' is not known", "did you mean 'ring'?"},
      {with("", R"("algorithm": [], "seq_len": 8)"), "dir/x.json:2: sweep.algorithm:", "empty list",
       "at least one value"},
      {with("", R"("seq_len": 8)"), "dir/x.json:2: sweep.algorithm:", "is missing", "e.g."},
      {with("", R"("algorithm": "ring", "seq_len": 8, "batch": {"rule": "constant_tokens"})"),
       "dir/x.json:2: sweep.batch.tokens_per_batch:", "is missing", "\"1M\""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "batch": {"tokens_per_batch": "1M"})"),
       "dir/x.json:2: sweep.batch.tokens_per_batch:", "another rule", "constant_tokens"},
      {with("", R"("algorithm": "ring", "seq_len": 8, "batch": 3)"),
       "dir/x.json:2: sweep.batch:", "must be an object", ""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "layout": "zigzga")"),
       "dir/x.json:2: sweep.layout:", "is not known", "did you mean 'zigzag'?"},
      {with("", R"("algorithm": "ring", "seq_len": 8, "heads": 12, "kv_heads": [1, 5])"),
       "dir/x.json:2: sweep.kv_heads:", "must divide the 12 heads, is 5", ""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "collective": "brick")"),
       "dir/x.json:2: sweep.collective:", "is not known", "did you mean 'bruck'?"},
      {with("", R"("algorithm": "usp", "seq_len": 8, "ulysses_degree": "world")"),
       "dir/x.json:2: sweep.ulysses_degree:", "an integer or \"divisors\"", ""},
      {with("", R"("algorithm": "usp", "seq_len": 8, "ulysses_degree": -2)"),
       "dir/x.json:2: sweep.ulysses_degree:", "at least 0, is -2",
       "use 0 or more, or \"divisors\""},
      {with("", R"("algorithm": "usp", "seq_len": 8,
                   "ring_inner": {"from": 1, "to": "divisors", "factor": 2})"),
       "dir/x.json:3: sweep.ring_inner.to:", "must be an integer", ""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "replicas": "all")"),
       "dir/x.json:2: sweep.replicas:", "an integer or \"auto\"", ""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "replicas": [2, 0])"),
       "dir/x.json:2: sweep.replicas:", "at least 1, is 0", "use 1 or more, or \"auto\""},
      {with("", R"("algorithm": "ring", "seq_len": 8,
                   "replicas": {"from": 1, "to": "auto", "factor": 2})"),
       "dir/x.json:3: sweep.replicas.to:", "must be an integer", ""},
      {with("", R"("algorithm": "ring", "seq_len": 8, "head_slice": -1)"),
       "dir/x.json:2: sweep.head_slice:", "at least 0, is -1", ""},
      {"{ \"schema_version\": 1 }", "dir/x.json:1: sweep.algorithm:", "is missing", "e.g."},
  });
}

TEST(ConfigMistakes, Lengths) {
  expect_errors({
      {with("", R"("algorithm": "ring", "seq_len": [])"),
       "dir/x.json:2: sweep.seq_len:", "empty list", "at least one value"},
      {with("", R"("algorithm": "ring")"), "dir/x.json:2: sweep.seq_len:", "is missing", "8K"},
      {with("", R"("algorithm": "ring", "seq_len": "8G")"),
       "dir/x.json:2: sweep.seq_len:", "number of tokens, is \"8G\"", "\"8K\""},
      {with("", R"("algorithm": "ring", "seq_len": 0)"),
       "dir/x.json:2: sweep.seq_len:", "at least 1, is 0", "use 1 or more"},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "to": 4, "factor": 2})"),
       "dir/x.json:2: sweep.seq_len:", "from 8 is greater than to 4", "swap"},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "to": 16, "factor": 1})"),
       "dir/x.json:2: sweep.seq_len.factor:", "greater than 1, is 1", ""},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "to": 16})"),
       "dir/x.json:2: sweep.seq_len:", "needs a factor or a step", "doubles"},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "to": 16, "factor": 2, "step": 1})"),
       "dir/x.json:2: sweep.seq_len:", "not both", "doubles"},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "factor": 2})"),
       "dir/x.json:2: sweep.seq_len:", "needs \"from\" and \"to\"", "write {"},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 1, "to": "1B", "step": 1})"),
       "dir/x.json:2: sweep.seq_len:", "more than 10000 values", "greater step"},
      {with("", R"("algorithm": "ring", "seq_len": "world")"),
       "dir/x.json:2: sweep.seq_len:", "number of tokens", ""},
      {with("", R"("algorithm": "ring", "seq_len": "1025B")"),
       "dir/x.json:2: sweep.seq_len:", "at most 1099511627776, is 1100585369600", ""},
      {with("", R"("algorithm": "ring", "seq_len": {"from": 8, "to": "1025B", "factor": 2})"),
       "dir/x.json:2: sweep.seq_len.to:", "at most 1099511627776", ""},
      {with(R"("model": { "heads": 10000, "head_dim": 256 })",
            R"("algorithm": "ring", "seq_len": "1024B")"),
       "dir/x.json:2: sweep.seq_len:", "its bytes pass 2^63", "shorter sequences"},
      {with("", R"("algorithm": "ring", "seq_len": "1B", "batch": {"size": 1000000000})"),
       "dir/x.json:2: sweep.seq_len:", "its bytes pass 2^63", "smaller batch"},
  });
}

TEST(ConfigMistakes, Patterns) {
  expect_errors({
      {with(R"("sparse": { "segment": "root" })"),
       "dir/x.json:3: sparse.segment:", "must be a number of tokens or \"sqrt\", is", "\"sqrt\""},
      {with(R"("sparse": { "summary": 0 })"), "dir/x.json:3: sparse.summary:", "at least 1, is 0",
       ""},
      {with(R"("sparse": { "segment": 16, "summary": 17 })"),
       "dir/x.json:3: sparse.summary:", "more than the segment of 16", "fewer tokens"},
      {with(R"("sparse": { "segments": 16 })"), "dir/x.json:3: sparse.segments:", "unknown key",
       "did you mean 'segment'?"},
      {with(R"("dilated": { "segments": ["half"] })"),
       "dir/x.json:3: dilated.segments:", "must be a number of tokens or", "\"per_rank\""},
      {with(R"("dilated": { "ratios": [1, 2, 4] })"),
       "dir/x.json:3: dilated.ratios:", "are a list for", "ratio_rule"},
      {with(R"("dilated": { "ratio_rule": "list" })"),
       "dir/x.json:3: dilated.ratios:", "is missing", "[1, 2, 4]"},
      {with(R"("dilated": { "ratio_rule": "list", "ratios": [1, 2] })"),
       "dir/x.json:3: dilated.ratios:", "2 ratios for 3 segments", "same order"},
      {with(R"("dilated": { "ratio_rule": "list", "ratios": [1, 2, 9223372036854775807] })"),
       "dir/x.json:3: dilated.ratios:", "at most 1099511627776", ""},
      {with(R"("dilated": { "ratio_rule": "linear" })"),
       "dir/x.json:3: dilated.ratio_rule:", "'linear' is not known", "geometric"},
  });
}

TEST(ConfigMistakes, ExclusionsAndLimits) {
  expect_errors({
      {with(R"("exclude": [ { "where": "algorithm == rnig", "reason": "x" } ])"),
       "dir/x.json:3: exclude[0].where:", "no algorithm is named 'rnig'", "did you mean 'ring'?"},
      {with(R"("exclude": [ { "where": "rank > 4", "reason": "x" } ])"),
       "dir/x.json:3: exclude[0].where:", "unknown key 'rank'", "did you mean 'ranks'?"},
      {with(R"("exclude": [ { "where": "ranks > 4" } ])"),
       "dir/x.json:3: exclude[0].reason:", "missing or empty", "say why"},
      {with(R"("exclude": { "where": "ranks > 4" })"), "dir/x.json:3: exclude:", "must be a list",
       "[ {"},
      {with(R"("measure": { "min_samples": 20, "max_samples": 10 })"),
       "dir/x.json:3: measure.max_samples:", "less than min_samples = 20", "raise"},
      {with(R"("measure": { "target_ci": -1 })"), "dir/x.json:3: measure.target_ci:",
       "at least 0 and at most 1, is -1", "use a number at least 0 and at most 1"},
      {with(R"("measure": { "point_timeout_s": 0 })"),
       "dir/x.json:3: measure.point_timeout_s:", "greater than 0, is 0", ""},
      {with(R"("memory": { "limit_fraction": 1.5 })"),
       "dir/x.json:3: memory.limit_fraction:", "at most 1, is 1.5", ""},
      {with(R"("memory": { "limit_bytes": "8 gigs" })"),
       "dir/x.json:3: memory.limit_bytes:", "number of bytes", "\"8GiB\""},
      {with(R"("memory": { "on_exceed": "stop" })"),
       "dir/x.json:3: memory.on_exceed:", "is not known", "skip"},
  });
}

TEST(ConfigMistakes, TheFile) {
  expect_errors({
      {with(R"("name": "a/b")"), "dir/x.json:3: name:", "cannot be part of a folder's name",
       "letters"},
      {with(R"("description": 4)"), "dir/x.json:3: description:", "must be a string", "quotes"},
      {"{ \"sweep\": { \"algorithm\": \"ring\", \"seq_len\": 8 } }",
       "dir/x.json:1: schema_version:", "is missing", "\"schema_version\": 1"},
      {"{ \"schema_version\": 2, \"sweep\": { \"algorithm\": \"ring\", \"seq_len\": 8 } }",
       "dir/x.json:1: schema_version:", "at most 1, is 2", ""},
      {"[1]", "dir/x.json:1:", "a config is an object, this is a list", "start with {"},
      {"{ \"a\": 1,\n\"a\": 2 }", "dir/x.json:2:", "'a' occurs twice", "line 1"},
      {"{ \"a\": }", "dir/x.json:1:", "not valid JSON", "comma"},
      {"{ \"a\": 1,\n", "dir/x.json:1:", "not valid JSON", "the file is cut off"},
      {"{ \"a\": \"b", "dir/x.json:1:", "not valid JSON", "the file is cut off"},
      {"{ \"a\": tru", "dir/x.json:1:", "not valid JSON", "the file is cut off"},
      {R"({ "schema_version": 1, "run": {}, "environment": {} })",
       "dir/x.json:1:", "this is a result", "run.config"},
  });
}

}  // namespace
}  // namespace longnet
