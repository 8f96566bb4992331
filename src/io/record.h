// Record of one point: the exact keys of points.jsonl and result.json as a struct.
//
// Units stand in the names. A double that was not measured is NaN here and null in JSON. `fields`
// of each struct is the one list of its keys: result, journal and schema follow from it.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_summary.h"
#include "io/point.h"
#include "measure/statistics.h"

namespace longnet {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

enum class Source { kMeasured, kSimulated, kReplayed, kExtrapolated };
constexpr auto texts_of(Source) {
  return texts("measured", "simulated", "replayed", "extrapolated");
}

struct TimingRecord {
  std::vector<double> samples_s;  // each over all ranks, by `reduction`
  double median_s = kNotMeasured, ci_low_s = kNotMeasured, ci_high_s = kNotMeasured;
  double ci_level = kNotMeasured, p95_s = kNotMeasured, min_s = kNotMeasured;
  int warmup = 0;
  std::string reduction = "max";  // see the schema
  static void fields(auto& t, auto&& visit) {
    visit("samples_s", t.samples_s, {.min = 0});
    visit("median_s", t.median_s, {.min = 0});
    visit("ci_low_s", t.ci_low_s, {.min = 0});
    visit("ci_high_s", t.ci_high_s, {.min = 0});
    visit("ci_level", t.ci_level, {.min = 0, .max = 1});
    visit("p95_s", t.p95_s, {.min = 0});
    visit("min_s", t.min_s, {.min = 0});
    visit("warmup", t.warmup);
    visit("reduction", t.reduction, {.words = {"span", "max", "sum"}});
  }
};

struct PhasesRecord {
  double compute_s = kNotMeasured, communication_s = kNotMeasured;
  double exposed_communication_s = kNotMeasured, merge_s = kNotMeasured;
  static void fields(auto& p, auto&& visit) {
    visit("compute_s", p.compute_s);
    visit("communication_s", p.communication_s);
    visit("exposed_communication_s", p.exposed_communication_s);
    visit("merge_s", p.merge_s);
  }
};

// Times of the point with parts left out: they tell what overlap hides, and what fragments cost.
struct AblationsRecord {
  double full_s = kNotMeasured;
  double compute_only_s = kNotMeasured;        // no communication; exposed = full - this
  double communication_only_s = kNotMeasured;  // no attention
  double serialised_s = kNotMeasured;          // one after the other
  double single_attend_s = kNotMeasured;       // a rank's pairs in one attend, nothing to merge
  static void fields(auto& a, auto&& visit) {
    visit("full_s", a.full_s, {.min = 0});
    visit("compute_only_s", a.compute_only_s, {.min = 0});
    visit("communication_only_s", a.communication_only_s, {.min = 0});
    visit("serialised_s", a.serialised_s, {.min = 0});
    visit("single_attend_s", a.single_attend_s, {.min = 0});
  }
};

struct RankRecord {
  int rank = 0;
  double median_s = kNotMeasured;
  double pairs = kNotMeasured;            // (query, key, head) pairs that its program attends to
  std::optional<int64_t> memory_bytes{};  // size of its buffers, where ranks were walked one by one
  static void fields(auto& r, auto&& visit) {
    visit("rank", r.rank);
    visit("median_s", r.median_s);
    visit("pairs", r.pairs, {.min = 0, .unit = Unit::kCount, .later = true});
    visit("memory_bytes", r.memory_bytes, {.omit = true});
  }
};

struct WorkRecord {
  int64_t tokens = 0;
  // 4 d per (query, key) pair forward, 10 d backward; may pass 2^63, hence double.
  double flops = kNotMeasured;
  double paper_macs = kNotMeasured;
  double flops_per_s = kNotMeasured, share_of_peak = kNotMeasured;
  double peak_flops_per_s = kNotMeasured;  // the highest that its hardware showed
  std::vector<double> coverage{};  // per branch: share of (token, head) pairs that it updates
  double balance = kNotMeasured;   // mean over maximum of the ranks' pairs; 1: all do the same
  static void fields(auto& w, auto&& visit) {
    visit("tokens", w.tokens);
    visit("flops", w.flops, {.unit = Unit::kCount});
    visit("paper_macs", w.paper_macs, {.unit = Unit::kCount});
    visit("flops_per_s", w.flops_per_s);
    visit("share_of_peak", w.share_of_peak);
    visit("peak_flops_per_s", w.peak_flops_per_s, {.min = 0, .later = true});
    visit("coverage", w.coverage, {.min = 0, .max = 1});
    visit("balance", w.balance, {.min = 0, .max = 1, .later = true});
  }
};

struct CommRecord {  // maxima over ranks of what a rank sends
  std::optional<int64_t> counted_bytes_per_rank, predicted_bytes_per_rank;
  std::optional<int64_t> counted_messages_per_rank, predicted_messages_per_rank;
  // Moved by a library's own collectives, unseen, beside what was counted; empty: nothing.
  std::optional<int64_t> modelled_bytes_per_rank{}, modelled_messages_per_rank{};
  std::optional<int64_t> closed_form_bytes_per_rank{}, closed_form_messages_per_rank{};
  std::vector<std::string> collectives_used{};  // "all_gather: bruck"
  // Counted and modelled together; empty: not counted.
  std::optional<int64_t> bytes_per_rank() const {
    if (!counted_bytes_per_rank) return {};
    return *counted_bytes_per_rank + modelled_bytes_per_rank.value_or(0);
  }
  std::optional<int64_t> messages_per_rank() const {
    if (!counted_messages_per_rank) return {};
    return *counted_messages_per_rank + modelled_messages_per_rank.value_or(0);
  }
  static void fields(auto& c, auto&& visit) {
    visit("counted_bytes_per_rank", c.counted_bytes_per_rank);
    visit("predicted_bytes_per_rank", c.predicted_bytes_per_rank);
    visit("counted_messages_per_rank", c.counted_messages_per_rank);
    visit("predicted_messages_per_rank", c.predicted_messages_per_rank);
    visit("modelled_bytes_per_rank", c.modelled_bytes_per_rank, {.omit = true});
    visit("modelled_messages_per_rank", c.modelled_messages_per_rank, {.omit = true});
    visit("closed_form_bytes_per_rank", c.closed_form_bytes_per_rank, {.later = true});
    visit("closed_form_messages_per_rank", c.closed_form_messages_per_rank, {.later = true});
    visit("collectives_used", c.collectives_used, {.omit = true, .schema = "collectives_used"});
  }
};

// Relative difference between resident memory and the ranks' buffers above which a note is printed.
inline constexpr double kNotedResidentDifference = 0.1;

struct MemoryRecord {
  std::optional<int64_t> measured_peak_bytes{}, predicted_peak_bytes{};
  std::optional<int64_t> closed_form_bytes{};  // size of the slots
  // The process whose resident memory differs most from its ranks' buffers: its growth in bytes,
  // and that over the buffers, less 1.
  std::optional<int64_t> resident_growth_bytes{};
  double resident_difference = kNotMeasured;
  std::map<std::string, int64_t> by_tag{};
  std::optional<int64_t> device_bytes{};  // a GPU's memory for each rank that it serves
  static void fields(auto& m, auto&& visit) {
    visit("measured_peak_bytes", m.measured_peak_bytes);
    visit("predicted_peak_bytes", m.predicted_peak_bytes);
    visit("closed_form_bytes", m.closed_form_bytes, {.later = true});
    visit("resident_growth_bytes", m.resident_growth_bytes, {.later = true});
    visit("resident_difference", m.resident_difference, {.later = true});
    visit("by_tag", m.by_tag);
    visit("device_bytes", m.device_bytes, {.omit = true});
  }
};

// Gradients of a backward pass: sampled rows of each, and laws of conservation over all.
struct GradientRecord {
  double dq_rel_l2_error = kNotMeasured, dk_rel_l2_error = kNotMeasured;
  double dv_rel_l2_error = kNotMeasured;
  int64_t keys = 0;                         // those with compared dK and dV
  int64_t strata = 0, strata_left_out = 0;  // (branch, K/V head), (rank, K/V head)
  double sum_dk = kNotMeasured, q_dq_k_dk = kNotMeasured, v_dv_o_do = kNotMeasured;
  double law_tolerance = kNotMeasured;
  double q_dq_terms = kNotMeasured, k_dk_terms = kNotMeasured, v_dv_terms = kNotMeasured;
  static void fields(auto& g, auto&& visit) {
    visit("dq_rel_l2_error", g.dq_rel_l2_error, {.min = 0});
    visit("dk_rel_l2_error", g.dk_rel_l2_error, {.min = 0});
    visit("dv_rel_l2_error", g.dv_rel_l2_error, {.min = 0});
    visit("keys", g.keys);
    visit("strata", g.strata, {.later = true});
    visit("strata_left_out", g.strata_left_out, {.later = true});
    visit("sum_dk", g.sum_dk, {.min = 0});
    visit("q_dq_k_dk", g.q_dq_k_dk, {.min = 0});
    visit("v_dv_o_do", g.v_dv_o_do, {.min = 0});
    visit("law_tolerance", g.law_tolerance, {.min = 0});
    visit("q_dq_terms", g.q_dq_terms, {.min = 0, .later = true});
    visit("k_dk_terms", g.k_dk_terms, {.min = 0, .later = true});
    visit("v_dv_terms", g.v_dv_terms, {.min = 0, .later = true});
  }
};

struct CheckRecord {
  std::string status = "not_run";
  // "double": the definition. Of models "central_difference" (fp32) or "fp32" (bf16).
  std::string reference{};
  double max_rel_error = kNotMeasured, rel_l2_error = kNotMeasured;
  // Over queries that are the same for any number of ranks and any layout.
  double spread_rel_l2_error = kNotMeasured;
  int64_t queries = 0;
  double tolerance = kNotMeasured;
  int64_t runs = 0;                         // with a checked output: samples and the warm-up
  int64_t strata = 0, strata_left_out = 0;  // (branch, head), (rank, head), (rank, branch)
  // The slowest rank's, never timed; proof_s is NaN where nobody proved the schedule.
  double poison_s = kNotMeasured, compare_s = kNotMeasured, proof_s = kNotMeasured;
  std::optional<GradientRecord> gradients{};
  static void fields(auto& c, auto&& visit) {
    visit("status", c.status, {.words = {"pass", "fail", "not_run"}});
    visit("reference", c.reference, {.null = true});
    visit("max_rel_error", c.max_rel_error);
    visit("rel_l2_error", c.rel_l2_error);
    visit("spread_rel_l2_error", c.spread_rel_l2_error, {.later = true});
    visit("queries", c.queries);
    visit("tolerance", c.tolerance);
    visit("runs", c.runs, {.later = true});
    visit("strata", c.strata, {.later = true});
    visit("strata_left_out", c.strata_left_out, {.later = true});
    visit("poison_s", c.poison_s, {.min = 0, .later = true});
    visit("compare_s", c.compare_s, {.min = 0, .later = true});
    visit("proof_s", c.proof_s, {.min = 0, .later = true});
    visit("gradients", c.gradients, {.omit = true});
  }
};

// Inputs and output of all ranks together. Digests do not depend on the order of rows.
struct ContentRecord : OutputSummary {
  uint64_t input_digest = 0;
  std::array<uint64_t, 3> gradient_digests{};  // dQ, dK, dV of a backward pass
  void add(const ContentRecord& o) {
    OutputSummary::add(o);
    input_digest += o.input_digest;
    for (size_t i = 0; i < gradient_digests.size(); ++i)
      gradient_digests[i] += o.gradient_digests[i];
  }
  static void fields(auto& c, auto&& visit) {
    visit("input_digest", c.input_digest, {.omit = true});  // all inputs together, not one head's
    visit("dq_digest", c.gradient_digests[0], {.omit = true});
    visit("dk_digest", c.gradient_digests[1], {.omit = true});
    visit("dv_digest", c.gradient_digests[2], {.omit = true});
    OutputSummary::fields(c, visit);
  }
};

struct TimelineEntry {
  int rank = 0;
  std::string
      lane;  // compute, communication; simulated: compute, copy, gather, send, "send 2", ...
  std::string op;
  double begin_s = 0, end_s = 0;
  std::string detail{};  // "branch 2", "step 7", "rank 3"; may be empty
  static void fields(auto& e, auto&& visit) {
    visit("rank", e.rank);
    visit("lane", e.lane);
    visit("op", e.op);
    visit("begin_s", e.begin_s);
    visit("end_s", e.end_s);
    visit("detail", e.detail, {.omit = true});
  }
};

struct PointRecord {
  std::string id;
  Source source = Source::kMeasured;
  PointStatus status = PointStatus::kOk;
  std::string reason;  // "" is null
  PointParams params;
  TimingRecord timing;
  PhasesRecord phases;
  std::vector<RankRecord> per_rank;
  WorkRecord work;
  CommRecord comm;
  MemoryRecord memory;
  CheckRecord check;
  std::optional<AblationsRecord> ablations;
  std::optional<ContentRecord> content;
  std::map<std::string, double> metrics;  // name -> value, e.g. "measured_share"
  std::vector<TimelineEntry> timeline;    // one step
  static void fields(auto& r, auto&& visit) {
    visit("id", r.id, {.schema = "id"});
    visit("source", r.source);
    visit("status", r.status);
    visit("reason", r.reason, {.null = true});
    visit("params", r.params);
    visit("timing", r.timing);
    visit("phases", r.phases);
    visit("per_rank", r.per_rank);
    visit("work", r.work);
    visit("comm", r.comm);
    visit("memory", r.memory);
    visit("check", r.check);
    visit("ablations", r.ablations, {.omit = true});
    visit("content", r.content, {.omit = true});
    visit("metrics", r.metrics, {.omit = true});
    visit("timeline", r.timeline, {.omit = true, .schema = "timeline"});
  }
};

// Id, params, status and reason of `point`; everything else not measured.
PointRecord make_record(const Point& point, Source source = Source::kMeasured);

// Fills the timing block: median, interval (default level), p95, min; and the rate of the work.
void set_timing(PointRecord& record, const std::vector<double>& samples_s, int warmup,
                std::string_view reduction = "max");
// The part of it that needs no samples.
void set_interval(PointRecord& record, const MedianInterval& interval, double min_s);

// Turns a record that contradicts itself into an error: ok without a median, ok with a failed check
// or unequal byte counts, faster than the machine's peak (share_of_peak > 1.05; a measured point's
// ablations too), anything else without a reason. Returns true if it was consistent.
bool validate_record(PointRecord& record);

inline std::string record_to_json(const PointRecord& record) {  // one line
  return dump_json(write_fields(record));
}
PointRecord record_from(const JsonNode& node);  // throws UsageError, as the next
inline PointRecord record_from_json(std::string_view text) {
  return record_from(parse_json(text, "record"));
}

}  // namespace longnet
