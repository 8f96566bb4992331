#include "io/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "io/config_reader.h"
#include "io/filter.h"
#include "io/units.h"
#include "json/text.h"

namespace longnet {
namespace {

constexpr IntRule kHeadDim{.min = 8, .max = 256, .multiple_of = 8};
constexpr int64_t kMostHeads = 16384;  // a schedule lists what each one selects
constexpr int64_t kMaxAxisValues = 10000;

template <class Enum>
void read_enum(ObjectReader& r, std::string_view key, Enum& out,
               const std::vector<std::string>& names) {
  std::string name;
  r.choice(key, name, names);
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) out = Enum(i);
}

void read_model(ObjectReader r, ModelConfig& model) {
  r.integer("heads", model.heads, {.max = kMostHeads});
  r.integer("kv_heads", model.kv_heads, {.max = kMostHeads});
  r.integer("head_dim", model.head_dim, kHeadDim);
  read_enum(r, "dtype", model.dtype, dtype_names());
  r.boolean("causal", model.causal);
  r.integer("seed", model.seed, {.min = 0});
  r.unknown_keys();
}

void read_segments(ObjectReader& r, std::vector<SegmentSpec>& out) {
  const JsonNode* n = r.take("segments");
  if (!n) return;
  std::vector<SegmentSpec> segments;
  for (const JsonNode* item : as_list(*n, r.path_of("segments"), r.problems())) {
    SegmentSpec s;
    if (item->is_string() && item->string == "per_rank") {
      s.kind = SegmentSpec::Kind::kPerRank;
    } else if (item->is_string() && item->string == "sequence") {
      s.kind = SegmentSpec::Kind::kSequence;
    } else if (item->is_string() && !try_parse_tokens(item->string)) {
      r.problems().add(*item, r.path_of("segments"),
                       concat("'", item->string, "' is no segment length"),
                       "use tokens (2048, \"8K\"), \"per_rank\" or \"sequence\"");
      continue;
    } else if (!read_integer(*item, r.path_of("segments"), {.tokens = true}, r.problems(),
                             s.tokens)) {
      continue;
    }
    segments.push_back(s);
  }
  out = segments;
}

void read_dilated(ObjectReader r, DilatedConfig& d) {
  read_segments(r, d.segments);
  read_enum(r, "ratio_rule", d.ratio_rule, ratio_rule_names());
  IntAxis ratios;
  r.axis("ratios", ratios, {});
  const JsonNode* given = r.node().find("ratios");
  if (given && (given->is_object() || !r.node().find("ratio_rule")))
    r.problems().add(*given, r.path_of("ratios"), "ratios are a list for the ratio_rule \"list\"",
                     "add \"ratio_rule\": \"list\" and one ratio per segment");
  d.ratios = ratios.values;
  read_enum(r, "offset", d.offset, offset_names());
  read_enum(r, "phase", d.phase, phase_names());
  r.choice("gather_scope", d.gather_scope, gather_scope_names());
  read_enum(r, "mix", d.mix, mix_names());
  r.unknown_keys();
}

void read_sparse(ObjectReader r, SparseConfig& s) {
  r.tokens_or("segment", "sqrt", s.segment);
  r.tokens_or("summary", "match_dilated", s.summary);
  r.unknown_keys();
}

void read_batch(ObjectReader r, BatchConfig& batch) {
  static const std::vector<std::string> kRules{"fixed", "constant_tokens"};
  std::string rule = "fixed";
  r.choice("rule", rule, kRules);
  batch.constant_tokens = rule == "constant_tokens";
  r.integer("size", batch.size, {});
  std::optional<int64_t> given = 0;
  r.tokens_or("tokens_per_batch", "device", given);
  batch.tokens_of_device = !given.has_value();
  batch.tokens_per_batch = given.value_or(BatchConfig::kTokensOfNoDevice);
  const JsonNode* tokens = r.node().find("tokens_per_batch");
  if (batch.constant_tokens && !tokens)
    r.problems().add(r.node(), r.path_of("tokens_per_batch"), "is missing",
                     "the rule \"constant_tokens\" needs it, e.g. \"1M\"");
  if (tokens && !r.node().find("rule"))
    r.problems().add(*tokens, r.path_of("tokens_per_batch"), "belongs to another rule",
                     "add \"rule\": \"constant_tokens\"");
  r.unknown_keys();
}

void read_sweep(ObjectReader r, const KnownNames& known, SweepConfig& sweep) {
  r.names("algorithm", sweep.algorithm, known.algorithms);
  r.axis("seq_len", sweep.seq_len, {.max = kMaxSeqLen, .tokens = true});
  r.axis("ranks", sweep.ranks, {.max = 1 << 24, .world = true});
  if (const JsonNode* batch = r.take("batch"))
    read_batch(ObjectReader(batch, r.path_of("batch"), r.problems()), sweep.batch);
  r.axis("heads", sweep.heads, {.max = kMostHeads});
  r.axis("kv_heads", sweep.kv_heads, {.max = kMostHeads});
  r.axis("head_dim", sweep.head_dim, kHeadDim);
  r.axis("seed", sweep.seed, {.min = 0});
  r.axis("threads", sweep.threads, {.min = 0, .max = 4096});
  std::vector<std::string> dtypes;
  r.names("dtype", dtypes, dtype_names());
  for (const std::string& name : dtypes) sweep.dtype.push_back(parse_dtype(name));
  r.booleans("causal", sweep.causal);
  r.names("kernel", sweep.kernel, known.kernels);
  r.names("layout", sweep.layout, known.layouts);
  r.names("collective", sweep.collective, known.collectives);
  r.axis("ulysses_degree", sweep.ulysses_degree, {.min = 0, .max = 1 << 24, .divisors = true});
  r.axis("ring_inner", sweep.ring_inner, {.min = 0, .max = 1 << 24, .divisors = true});
  r.axis("head_slice", sweep.head_slice, {.min = 0});
  r.axis("node_size", sweep.node_size, {.min = 0, .max = 1 << 24});
  r.axis("replicas", sweep.replicas, {.max = 1 << 24, .automatic = true});
  r.unknown_keys();
}

void read_run(ObjectReader r, const KnownNames& known, RunConfig& run) {
  r.choice("kernel", run.kernel, known.kernels);
  static const std::vector<std::string> kTransports{
      "auto", "virtual", "nccl", "nccl_registered", "cuda_ipc", "mpi_host"};
  r.choice("transport", run.transport, kTransports);
  r.integer("threads", run.threads, {.min = 0, .max = 4096});
  r.unknown_keys();
}

void read_virtual(ObjectReader r, VirtualConfig& v) {
  const auto optional_real = [&](std::string_view key, std::optional<double>& out,
                                 const Limits& limits) {
    double value = -1;
    r.real(key, value, limits);
    if (value >= 0) out = value;
  };
  r.real("sample_share", v.sample_share, {.min = 0, .max = 1, .min_excluded = true});
  r.real("exact_point_s", v.exact_point_s, {.min = 0});
  optional_real("latency_s", v.latency_s, {.min = 0});
  optional_real("bytes_per_s", v.bytes_per_s, {.min = 0, .min_excluded = true});
  const bool one = r.node().find("latency_s") != nullptr;
  if (one != (r.node().find("bytes_per_s") != nullptr))
    r.problems().add(r.node(), r.path_of(one ? "bytes_per_s" : "latency_s"), "is missing",
                     "a link has a latency_s and a bytes_per_s: give both or none");
  r.unknown_keys();
}

// An empty text asks nothing: the cluster as it is.
void read_what_if(ObjectReader& r, const KnownNames& known, std::vector<std::string>& out) {
  const JsonNode* n = r.take("what_if");
  if (!n) return;
  const std::string path = r.path_of("what_if");
  for (const JsonNode* item : as_list(*n, path, r.problems())) {
    if (!item->is_string()) {
      r.problems().add(*item, path, concat("must be a string, is ", item->kind_name()),
                       "e.g. \"inter_bandwidth=0.25\", or \"\" for the cluster as it is");
      continue;
    }
    const std::string why =
        known.why_bad_what_if ? known.why_bad_what_if(item->string) : std::string();
    if (!why.empty()) r.problems().add(*item, path, why, "lnbench simulate --help lists them");
    if (std::ranges::find(out, item->string) != out.end())
      r.problems().add(*item, path, concat("'", item->string, "' stands there twice"),
                       "its points would be the same: leave one out");
    out.push_back(item->string);
  }
}

void read_cluster(ObjectReader r, const KnownNames& known, ClusterConfig& c) {
  r.text("file", c.file);
  if (const JsonNode* file = r.node().find("file"); file && file->is_string() && c.file.empty())
    r.problems().add(*file, r.path_of("file"), "is empty",
                     "name a cluster, e.g. \"configs/clusters/h100-ndr400.json\"");
  read_what_if(r, known, c.what_if);
  r.unknown_keys();
}

void read_exclude(const JsonNode* list, const KnownValues& known, Problems& problems,
                  std::vector<ExcludeRule>& out) {
  if (!list) return;
  if (!list->is_array()) {
    problems.add(*list, "exclude", concat("must be a list, is ", list->kind_name()),
                 "write [ {\"where\": \"ranks > 4\", \"reason\": \"...\"} ]");
    return;
  }
  for (size_t i = 0; i < list->items.size(); ++i) {
    const JsonNode& item = list->items[i];
    const std::string path = concat("exclude[", i, "]");
    ObjectReader r(&item, path, problems);
    ExcludeRule rule;
    r.text("where", rule.where);
    r.text("reason", rule.reason);
    r.boolean("omit", rule.omit);
    r.unknown_keys();
    if (item.is_object() && rule.where.empty())
      problems.add(item, path + ".where", "is missing or empty", "name the points: \"ranks > 4\"");
    if (item.is_object() && rule.reason.empty())
      problems.add(item, path + ".reason", "is missing or empty",
                   "results show it in place of a number: say why");
    try {
      const Filter parsed(rule.where, known);
    } catch (const UsageError& e) {
      const JsonNode* where = item.find("where");
      problems.add(where ? *where : item, path + ".where", e.what(), "");
    }
    out.push_back(rule);
  }
}

void read_measure(ObjectReader r, MeasureConfig& m) {
  r.integer("warmup", m.warmup, {.min = 0, .max = 1000000});
  r.integer("min_samples", m.min_samples, {.max = 1000000});
  r.integer("max_samples", m.max_samples, {.max = 1000000});
  r.real("target_ci", m.target_ci, {.min = 0, .max = 1});
  r.real("point_timeout_s", m.point_timeout_s, {.min = 0, .min_excluded = true});
  r.unknown_keys();
}

void read_check(ObjectReader r, CheckConfig& c) {
  r.integer("max_seq_len", c.max_seq_len, {.min = 0, .tokens = true});
  r.integer("sampled_queries", c.sampled_queries, {.min = 1});
  r.real("tolerance", c.tolerance, {.min = 0});
  r.unknown_keys();
}

void read_memory(ObjectReader r, MemoryConfig& m) {
  r.real("limit_fraction", m.limit_fraction, {.min = 0, .max = 1, .min_excluded = true});
  if (const JsonNode* n = r.take("limit_bytes")) {
    const auto bytes = n->is_string()                        ? try_parse_bytes(n->string)
                       : n->kind == JsonNode::Kind::kInteger ? std::optional(n->integer)
                                                             : std::nullopt;
    if (bytes && *bytes > 0) {
      m.limit_bytes = bytes;
    } else {
      r.problems().add(*n, r.path_of("limit_bytes"),
                       concat("must be a positive number of bytes, is ", dump_json(*n)),
                       "write 8589934592 or \"8GiB\"");
    }
  }
  static const std::vector<std::string> kActions{"skip"};
  r.choice("on_exceed", m.on_exceed, kActions);
  r.unknown_keys();
}

}  // namespace

const std::vector<std::string>& ratio_rule_names() {
  static const std::vector<std::string> kNames{"geometric", "sqrt", "list", "capped"};
  return kNames;
}
const std::vector<std::string>& phase_names() {
  static const std::vector<std::string> kNames{"segment", "shard"};
  return kNames;
}
const std::vector<std::string>& offset_names() {
  static const std::vector<std::string> kNames{"paper", "block", "none"};
  return kNames;
}
const std::vector<std::string>& mix_names() {
  static const std::vector<std::string> kNames{"lse", "mean", "sum"};
  return kNames;
}

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> kNames{"fp32", "bf16"};
  return kNames;
}
const std::vector<std::string>& gather_scope_names() {
  static const std::vector<std::string> kNames{"segment_group", "world"};
  return kNames;
}

KnownValues known_values(const KnownNames& known) {
  return {{"algorithm", known.algorithms},
          {"kernel", known.kernels},
          {"layout", known.layouts},
          {"collective", known.collectives},
          {"transport", {"threads", "mpi", "virtual", "simulated"}},
          {"gather_scope", gather_scope_names()},
          {"dtype", dtype_names()},
          {"offset", offset_names()},
          {"mix", mix_names()}};
}

std::vector<int64_t> axis_values(const IntAxis& axis, int64_t world_size, int64_t ranks) {
  std::vector<int64_t> values;
  const auto add = [&](int64_t v) {
    for (int64_t seen : values)
      if (seen == v) return;
    values.push_back(v);
  };
  if (!axis.is_range) {
    for (int64_t v : axis.values) {
      if (v != kDivisors) add(v == kWorld ? world_size : v);
      for (int64_t d = 1; v == kDivisors && d <= ranks; ++d)
        if (ranks % d == 0) add(d);
    }
    return values;
  }
  const int64_t to = axis.to == kWorld ? world_size : axis.to;
  for (double v = double(axis.from); std::llround(v) <= to;) {
    if (int64_t(values.size()) >= kMaxAxisValues)
      throw UsageError(concat("a range from ", axis.from, " to ", to, " has more than ",
                              kMaxAxisValues, " values\n  hint: use a greater step or a factor"));
    const int64_t whole = std::llround(v);
    if (values.empty() || whole > values.back()) values.push_back(whole);
    v = axis.factor > 0 ? v * axis.factor : v + double(std::max<int64_t>(1, axis.step));
  }
  return values;
}

Config parse_config(std::string_view text, const std::string& path, const LoadOptions& options) {
  const JsonNode root = load_config_tree(text, path, options.overrides);
  Problems problems;
  Config c;
  c.path = path;
  c.name = std::filesystem::path(path).stem().string();
  ObjectReader r(&root, "", problems);
  const auto section = [&](std::string_view key) {
    return ObjectReader(r.take(key), std::string(key), problems);
  };
  int64_t version = 0;
  r.integer("schema_version", version, {.max = 1});
  if (!root.find("schema_version"))
    problems.add(root, "schema_version", "is missing", "add \"schema_version\": 1");
  r.text("name", c.name);
  r.text("description", c.description);
  r.take("extends");
  read_model(section("model"), c.model);
  read_dilated(section("dilated"), c.dilated);
  read_sparse(section("sparse"), c.sparse);
  read_sweep(section("sweep"), options.known, c.sweep);
  read_run(section("run"), options.known, c.run);
  read_exclude(r.take("exclude"), known_values(options.known), problems, c.exclude);
  read_measure(section("measure"), c.measure);
  read_check(section("check"), c.check);
  read_memory(section("memory"), c.memory);
  read_virtual(section("virtual"), c.virtual_ranks);
  read_cluster(section("cluster"), options.known, c.cluster);
  r.unknown_keys();
  check_config(c, root, problems);
  problems.throw_if_any();
  return c;
}

}  // namespace longnet
