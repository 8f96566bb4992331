// What is written about one point: the exact keys of points.jsonl and result.json as a struct.
//
// Units stand in the names. A double that was not measured is NaN here and null in JSON.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/point.h"

namespace longnet {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

enum class Source { kMeasured, kSimulated, kReplayed, kExtrapolated };
std::string_view to_string(Source s);             // "measured", ...
Source parse_source(std::string_view name);       // throws UsageError
PointStatus parse_status(std::string_view name);  // throws UsageError

struct TimingRecord {
  std::vector<double> samples_s;  // each over all ranks, by `reduction`
  double median_s = kNotMeasured, ci_low_s = kNotMeasured, ci_high_s = kNotMeasured;
  double ci_level = kNotMeasured, p95_s = kNotMeasured, min_s = kNotMeasured;
  int warmup = 0;
  std::string reduction = "max";  // "span", "max" or "sum": see the schema
};

struct PhasesRecord {
  double compute_s = kNotMeasured, communication_s = kNotMeasured;
  double exposed_communication_s = kNotMeasured, merge_s = kNotMeasured;
};

// The same point with parts left out: what overlap hides, and what fragments cost.
struct AblationsRecord {
  double full_s = kNotMeasured;
  double compute_only_s = kNotMeasured;        // no communication; exposed = full - this
  double communication_only_s = kNotMeasured;  // no attention
  double serialised_s = kNotMeasured;          // one after the other
  double single_attend_s = kNotMeasured;       // a rank's pairs in one attend, nothing to merge
};

struct RankRecord {
  int rank = 0;
  double median_s = kNotMeasured;
  double pairs = kNotMeasured;            // (query, key, head) pairs that its program attends to
  std::optional<int64_t> memory_bytes{};  // of its buffers, where ranks were walked one by one
};

struct WorkRecord {
  int64_t tokens = 0;
  double flops = kNotMeasured;  // 4 d per (query, key) pair; may pass 2^63, hence double
  double paper_macs = kNotMeasured;
  double flops_per_s = kNotMeasured, share_of_peak = kNotMeasured;
  std::vector<double> coverage{};  // per branch: share of (token, head) pairs that it updates
  double balance = kNotMeasured;   // mean over maximum of the ranks' pairs; 1: all do the same
};

struct CommRecord {  // maxima over ranks of what a rank sends
  std::optional<int64_t> counted_bytes_per_rank, predicted_bytes_per_rank;
  std::optional<int64_t> counted_messages_per_rank, predicted_messages_per_rank;
  std::vector<std::string> collectives_used{};  // "all_gather: bruck"
};

struct MemoryRecord {
  std::optional<int64_t> measured_peak_bytes, predicted_peak_bytes;
  std::map<std::string, int64_t> by_tag{};
  std::optional<int64_t> device_bytes{};  // of a GPU: what it has for each rank that it serves
};

struct CheckRecord {
  std::string status = "not_run";  // pass, fail, not_run
  std::string reference{};         // "double"
  double max_rel_error = kNotMeasured, rel_l2_error = kNotMeasured;
  // Over queries that are the same for any number of ranks and any layout.
  double spread_rel_l2_error = kNotMeasured;
  int64_t queries = 0;
  double tolerance = kNotMeasured;
};

// What the inputs and the output were, of all ranks together: the same for every way to run a
// point, up to fp32 rounding of the output. Digests do not depend on the order of rows.
struct ContentRecord {
  uint64_t input_digest = 0, output_digest = 0;
  int64_t rows = 0;         // (sequence, token, head)
  int64_t absent_rows = 0;  // that no branch selects
  int64_t nan_values = 0;   // never written
  double sum = 0, sum_squares = 0, min = kNotMeasured, max = kNotMeasured;  // of O
  double lse_sum = 0;
};

struct TimelineEntry {
  int rank = 0;
  std::string lane;  // "compute", "communication"
  std::string op;
  double begin_s = 0, end_s = 0;
  std::string detail{};  // "branch 2", "step 7", "rank 3"; may be empty
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
  // Optional: tag -> value, e.g. "measured_share" of an extrapolation.
  std::map<std::string, double> metrics;
  std::vector<TimelineEntry> timeline;  // optional: one step
};

// Id, params, status and reason of `point`; everything else not measured.
PointRecord make_record(const Point& point, Source source = Source::kMeasured);

// Fills the timing block: median, interval (default level), p95, min.
void set_timing(PointRecord& record, const std::vector<double>& samples_s, int warmup);

// Turns a record that contradicts itself into an error: ok without a median, ok with a failed check
// or unequal byte counts, faster than the machine's peak (share_of_peak > 1.05; a measured point's
// ablations too), anything else without a reason. Returns true if it was consistent.
bool validate_record(PointRecord& record);

std::string record_to_json(const PointRecord& record, int indent = -1);
PointRecord record_from_json(std::string_view text);  // throws UsageError

}  // namespace longnet
