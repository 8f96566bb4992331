#include "io/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/testing/test_support.h"
#include "io/expand.h"
#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::HasSubstr;

// The whole numbers that an axis of the sweep asks for.
std::vector<int64_t> whole_values(const Config& c, const char* key, int64_t world = 1,
                                  int64_t ranks = 1) {
  std::vector<int64_t> values;
  for (const Value& v : c.values_of(*find_axis(key), world, ranks))
    values.push_back(std::get<int64_t>(v));
  return values;
}

std::string resolved_text(const Config& c) { return dump_json(resolved_config(c), 2); }

TEST(Config, DefaultsAndMinimum) {
  const Config c = parse(with(""));
  EXPECT_EQ(c.name, "x");
  EXPECT_EQ(c.defaults.problem.num_heads, 12);
  EXPECT_EQ(c.measure.min_samples, 10);
  EXPECT_EQ(c.defaults.kernel, "cpu");
  EXPECT_THAT(whole_values(c, "seq_len", 1), testing::ElementsAre(8192));
  EXPECT_THAT(whole_values(c, "ranks", 1), testing::ElementsAre(1));
}

TEST(Config, ReadsEverySection) {
  const Config c = parse(R"({
    "schema_version": 1, "name": "full", "description": "all keys",  // a comment
    "model": { "heads": 16, "kv_heads": 4, "head_dim": 128, "dtype": "bf16",
               "causal": true, "seed": 7 },
    "dilated": { "segments": [2048, "64K", "per_rank", "sequence"], "ratio_rule": "list",
                 "ratios": [1, 2, 4, 8], "offset": "block", "phase": "shard",
                 "gather_scope": "world", "mix": "mean" },
    "sweep": { "algorithm": ["dilated", "ring"], 
               "seq_len": {"from": "8K", "to": "64K", "factor": 2}, 
               "ranks": {"from": 1, "to": "world", "factor": 2}, "kernel": ["cpu", "reference"],
               "batch": {"rule": "constant_tokens", "tokens_per_batch": "1M"},
               "dtype": ["fp32", "bf16"], "causal": [true, false], "layout": "zigzag",
               "threads": [1, 2], "collective": "bruck", "ulysses_degree": "divisors",
               "ring_inner": [0, 2, "divisors"], "head_slice": 2 },
    "sparse": { "segment": "1K", "summary": 32 },
    "run": { "kernel": "reference", "threads": 3 },
    "exclude": [ { "where": "ranks > 4", "reason": "too slow" } ],
    "measure": { "warmup": 1, "min_samples": 2, "max_samples": 4, "target_ci": 0.1,
                 "point_timeout_s": 9.5 },
    "check": { "max_seq_len": "4K", "sampled_queries": 3, "tolerance": 0.001 },
    "memory": { "limit_fraction": 0.5, "limit_bytes": "8GiB", "on_exceed": "skip" } })");
  EXPECT_EQ(c.defaults.problem.num_kv_heads, 4);
  EXPECT_EQ(c.defaults.problem.dtype, DType::kBFloat16);
  EXPECT_EQ(c.dilated.segments[1], Value(65536));
  EXPECT_EQ(c.dilated.segments[2], Value(kPerRank));
  EXPECT_EQ(c.dilated.ratio_rule, RatioRule::kList);
  EXPECT_EQ(c.defaults.pattern.offset, OffsetRule::kBlock);
  EXPECT_EQ(c.dilated.phase, DilationPhase::kShard);
  EXPECT_EQ(c.defaults.pattern.mix, MixRule::kMean);
  EXPECT_THAT(whole_values(c, "seq_len", 1), testing::ElementsAre(8192, 16384, 32768, 65536));
  EXPECT_THAT(whole_values(c, "ranks", 8), testing::ElementsAre(1, 2, 4, 8));
  EXPECT_EQ(c.sweep.batch.tokens_per_batch, 1 << 20);
  EXPECT_THAT(c.sweep.axes.at("collective").values, testing::ElementsAre(Value("bruck")));
  EXPECT_THAT(whole_values(c, "ulysses_degree", 1, 12), testing::ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(whole_values(c, "ring_inner", 1, 6), testing::ElementsAre(0, 2, 1, 3, 6));
  EXPECT_THAT(whole_values(c, "head_slice", 1), testing::ElementsAre(2));
  EXPECT_EQ(c.sparse.segment, 1024);
  EXPECT_EQ(c.sparse.summary, 32);
  EXPECT_EQ(c.memory.limit_bytes, int64_t{8} << 30);
  EXPECT_EQ(c.measure.point_timeout_s, 9.5);
  EXPECT_EQ(c.defaults.threads, 3);
}

TEST(Config, VirtualRanks) {
  const Config plain = parse(with(""));
  EXPECT_EQ(plain.run.mode, Mode::kReal);
  EXPECT_EQ(plain.run.transport, "auto");
  EXPECT_EQ(plain.virtual_ranks.sample_share, 1);
  EXPECT_FALSE(plain.virtual_ranks.bytes_per_s);
  const Config c = parse(with(R"("run": { "mode": "virtual" }, "virtual": { "sample_share": 0.5,
    "exact_point_s": 20, "latency_s": 1e-6, "bytes_per_s": 1e9 })"));
  EXPECT_EQ(c.run.mode, Mode::kVirtual);
  EXPECT_EQ(c.virtual_ranks.sample_share, 0.5);
  EXPECT_EQ(c.virtual_ranks.exact_point_s, 20);
  EXPECT_EQ(c.virtual_ranks.latency_s, 1e-6);
  const Config again = parse(resolved_text(c));
  EXPECT_EQ(again.virtual_ranks.bytes_per_s, 1e9);
  EXPECT_EQ(config_sha256(again), config_sha256(c));
}

TEST(Config, ClusterOfASimulation) {
  using testing::ElementsAre;
  const Config c = parse(with(R"("cluster": { "file": "a.json", "what_if": ["", "taper=2"] })"));
  EXPECT_EQ(c.cluster.file, "a.json");
  EXPECT_THAT(c.cluster.what_if, ElementsAre("", "taper=2"));
  EXPECT_EQ(parse(resolved_text(c)).cluster.what_if, c.cluster.what_if);
  EXPECT_EQ(resolved_text(parse(with(""))).find("cluster"), std::string::npos);
  EXPECT_THAT(parse(with(R"("cluster": { "what_if": "taper=2" })")).cluster.what_if,
              ElementsAre("taper=2"));
  EXPECT_THAT(error_of(with(R"("cluster": { "fille": "a.json" })")),
              HasSubstr("dir/x.json:3: cluster.fille: unknown key"));
  EXPECT_THAT(error_of(with(R"("cluster": { "what_if": ["", ""] })")),
              HasSubstr("cluster.what_if: '' stands there twice"));
}

TEST(Config, ABatchMayBeLeftToTheDevice) {
  const auto batch = [](const std::string& tokens) {
    return parse(
               with(
                   "",
                   R"("algorithm": "ring", "seq_len": 8, "batch": {"rule": "constant_tokens", "tokens_per_batch": )" +
                       tokens + "}"))
        .sweep.batch;
  };
  EXPECT_TRUE(batch("\"device\"").tokens_of_device);
  EXPECT_EQ(batch("\"device\"").tokens_per_batch, 8 << 20);
  EXPECT_FALSE(batch("\"1M\"").tokens_of_device);
  EXPECT_FALSE(parse(with("")).sweep.batch.tokens_of_device);
  EXPECT_THROW(batch("\"machine\""), UsageError);
}

TEST(Config, SparseKnowsRulesByName) {
  const Config c = parse(with(R"("sparse": { "segment": "sqrt", "summary": "match_dilated" })"));
  EXPECT_FALSE(c.sparse.segment);
  EXPECT_FALSE(c.sparse.summary);
}

TEST(Config, AxesCount) {
  const auto values = [](const std::string& seq_len, int64_t world = 1) {
    return whole_values(parse(with("", concat("\"algorithm\": \"ring\", \"seq_len\": ", seq_len))),
                        "seq_len", world);
  };
  EXPECT_THAT(values("[\"8K\", 100, 8192]"), testing::ElementsAre(8192, 100));
  EXPECT_THAT(values(R"({"from": 10, "to": 35, "step": 10})"), testing::ElementsAre(10, 20, 30));
  EXPECT_THAT(values(R"({"from": 1, "to": 5, "factor": 1.2})"),
              testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(values(R"({"from": 4, "to": 4, "factor": 2})"), testing::ElementsAre(4));
}

TEST(Config, EndsAtTwentyProblems) {
  std::string keys;
  for (int i = 0; i < 500; ++i) keys += concat("\"wrong", i, "\": 1,\n");
  const std::string text =
      usage_error([&] { parse_config("{" + keys + "\"schema_version\": 1}", "x.json"); });
  EXPECT_EQ(std::ranges::count(text, '\n'), 20 + 1);  // and the hint, once
  EXPECT_THAT(text, testing::EndsWith("more problems"));
}

TEST(Config, EveryRangeEnds) {
  const auto seeds = [](const std::string& range) {
    return whole_values(
        parse_config(
            R"({"schema_version": 1, "sweep": {"algorithm": "ring", "seq_len": 64, "seed": )" +
                range + "}}",
            "x.json"),
        "seed", 1, 1);
  };
  const int64_t grain = int64_t{1} << 53, last = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(seeds(concat("{\"from\": ", grain, ", \"to\": ", grain + 3, ", \"step\": 1}")),
              testing::ElementsAre(grain, grain + 1, grain + 2, grain + 3));
  EXPECT_THAT(seeds(concat("{\"from\": ", last - 3, ", \"to\": ", last, ", \"step\": 2}")),
              testing::ElementsAre(last - 3, last - 1));
  for (const char* range : {"{\"from\": 0, \"to\": 8, \"factor\": 2}",
                            "{\"from\": 1, \"to\": 8, \"factor\": 1.0000000000000002}"})
    EXPECT_THAT(usage_error([&] { seeds(range); }), HasSubstr("no end")) << range;
}

TEST(Config, ReportsAllProblemsAtOnce) {
  const std::string error = error_of(with(
      "\"modle\": {},\n\"model\": { \"heads\": 0,\n \"dtyp\": \"fp32\" }", R"("seq_len": "8G")"));
  for (const char* part : {"x.json:3: modle", "x.json:4: model.heads", "x.json:5: model.dtyp",
                           "x.json:2: sweep.seq_len", "x.json:2: sweep.algorithm"})
    EXPECT_THAT(error, HasSubstr(part));
}

TEST(Config, OverridesAreJsonListOrString) {
  const Config c = parse(
      with(""), {"sweep.ranks=1,2,4", "model.dtype=bf16",
                 "sweep.seq_len={\"from\":1,\"to\":4,\"factor\":2}", "sweep.algorithm=dilated,ring",
                 "measure.target_ci=0.5", "description=a b", "dilated.segments=2048, per_rank"});
  EXPECT_THAT(whole_values(c, "ranks", 1), testing::ElementsAre(1, 2, 4));
  EXPECT_EQ(c.defaults.problem.dtype, DType::kBFloat16);
  EXPECT_THAT(whole_values(c, "seq_len", 1), testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(c.sweep.axes.at("algorithm").values,
              testing::ElementsAre(Value("dilated"), Value("ring")));
  EXPECT_EQ(c.measure.target_ci, 0.5);
  EXPECT_EQ(c.description, "a b");
  EXPECT_EQ(c.dilated.segments.size(), 2u);
}

TEST(Config, WrongOverridesAreNamed) {
  EXPECT_THAT(error_of(with(""), {"sweep.rank=1"}),
              HasSubstr("--set sweep.rank=1: sweep.rank: unknown key"));
  EXPECT_THAT(error_of(with(""), {"sweep.ranks=0"}),
              HasSubstr("--set sweep.ranks=0: sweep.ranks: must be at least 1"));
  EXPECT_THAT(error_of(with(""), {"sweep.ranks=0"}), HasSubstr("use 1 or more, or \"world\""));
  EXPECT_THAT(error_of(with(""), {"ranks"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error_of(with(""), {"=3"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error_of(with(""), {"sweep.seq_len.to=3"}),
              HasSubstr("sweep.seq_len is a string, it has no key 'to'"));
}

TEST(Config, ExtendsMergesObjectsAndReplacesTheRest) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("sub"));
  folder.write("base.json", R"({ "schema_version": 1, "name": "base",
    "model": { "heads": 8, "head_dim": 32 },
    "sweep": { "algorithm": ["dilated", "ring"], "seq_len": {"from": 8, "to": 64, "factor": 2},
               "batch": {"rule": "constant_tokens", "tokens_per_batch": 64} } })");
  folder.write("middle.json", R"({ "extends": "base.json", "model": { "causal": true } })");
  const std::string top =
      folder.write("sub/top.json", R"({ "extends": "../middle.json", "name": "top",
    "model": { "head_dim": 64 },
    "sweep": { "algorithm": ["ring"], "seq_len": {"from": 1, "to": 3, "step": 1},
               "batch": {"rule": "fixed"} } })");
  const Config c = load_config(top, {.known = kKnown});
  EXPECT_EQ(c.name, "top");
  EXPECT_EQ(c.defaults.problem.num_heads, 8);
  EXPECT_EQ(c.defaults.problem.head_dim, 64);
  EXPECT_TRUE(c.defaults.problem.causal);
  EXPECT_THAT(c.sweep.axes.at("algorithm").values, testing::ElementsAre(Value("ring")));
  EXPECT_THAT(whole_values(c, "seq_len", 1), testing::ElementsAre(1, 2, 3));
  EXPECT_FALSE(c.sweep.batch.constant_tokens);
}

TEST(Config, ExtendsErrorsNameTheFileAtFault) {
  const TemporaryFolder folder;
  folder.write("bad.json", "{ \"schema_version\": 1,\n \"modle\": 1 }");
  const std::string heir = folder.write("heir.json", with("\"extends\": \"bad.json\""));
  EXPECT_THAT(usage_error([&] { load_config(heir); }),
              HasSubstr(folder.path("bad.json") + ":2: modle"));
  const std::string lost = folder.write("lost.json", with("\"extends\": \"none.json\""));
  EXPECT_THAT(usage_error([&] { load_config(lost); }),
              HasSubstr("lost.json:3: extends: cannot read"));
  folder.write("a.json", with("\"extends\": \"b.json\""));
  folder.write("b.json", with("\"extends\": \"./a.json\""));
  EXPECT_THAT(usage_error([&] { load_config(folder.path("a.json")); }),
              HasSubstr("b.json:3: extends: './a.json' leads back"));
  const std::string self = folder.write("self.json", with("\"extends\": \"self.json\""));
  EXPECT_THAT(usage_error([&] { load_config(self); }), HasSubstr("leads back"));
  EXPECT_THAT(usage_error([&] { load_config(folder.path("nope.json")); }),
              HasSubstr("cannot read"));
  EXPECT_THAT(usage_error([&] { load_config(folder.path()); }), HasSubstr("cannot read"));
}

TEST(Config, ResolvedTextGivesTheSamePoints) {
  const std::vector<std::string> texts{
      with(""),
      with(
          R"("dilated": { "ratio_rule": "sqrt", "mix": "sum", "phase": "shard" },
              "model": {"kv_heads": 3})",
          R"("algorithm": ["dilated", "ring"], "seq_len": ["8K", 5000],
              "ranks": {"from": 1, "to": "world", "factor": 2})"),
      with(
          R"("exclude": [{"where": "ranks > 1 && algorithm == 'ring'", "reason": "x"}],
              "memory": {"limit_bytes": "1GiB"})",
          R"("algorithm": ["dilated", "ring"], "ranks": ["world", 1],
              "seq_len": {"from": 10, "to": 100, "step": 30},
              "heads": [4, 8], "dtype": ["fp32", "bf16"], "causal": [true, false],
              "batch": {"rule": "constant_tokens", "tokens_per_batch": "1K"}, "kernel": "reference",
              "threads": [0, 2])"),
      with(R"("sparse": {"segment": 16})",
           R"("algorithm": ["sparse", "usp", "ring"], "seq_len": [64, 256], "ranks": [2, 4],
              "layout": ["contiguous", "zigzag"], "collective": ["native", "bruck"],
              "ulysses_degree": [0, "divisors"], "head_slice": {"from": 1, "to": 4, "factor": 2},
              "replicas": [1, "auto"])"),
      with(R"("dilated": {"segments": [16, "sequence"], "ratio_rule": "list", "ratios": [1, 3]})",
           R"("algorithm": "dilated", "seq_len": {"from": 64, "to": "1K", "factor": 1.5},
              "seed": [1, 2], "head_dim": [8, 24])")};
  for (const std::string& text : texts) {
    const Config once = parse(text);
    const std::string resolved = resolved_text(once);
    const Config twice = parse(resolved);
    EXPECT_EQ(resolved_text(twice), resolved);
    EXPECT_EQ(config_sha256(twice), config_sha256(once));
    const auto a = expand(once, {.world_size = 4, .known = kKnown});
    const auto b = expand(twice, {.world_size = 4, .known = kKnown});
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].id, b[i].id);
      EXPECT_EQ(a[i].status, b[i].status);
      EXPECT_EQ(a[i].reason, b[i].reason);
    }
  }
}

TEST(Config, HashFollowsMeaningNotSpelling) {
  const Config a = parse(with(R"("measure": {"warmup": 3})")),
               b = parse(with("\"run\": {} // nothing"));
  EXPECT_EQ(config_sha256(a), config_sha256(b));
  EXPECT_NE(config_sha256(a), config_sha256(parse(with(R"("measure": {"warmup": 4})"))));
  EXPECT_EQ(config_sha256(a).size(), 64u);
}

}  // namespace
}  // namespace longnet
