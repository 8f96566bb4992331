// Checks an output: chooses queries and compares their rows with the definition (definition.h),
// which recomputes them in double.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "execute/bound_program.h"
#include "execute/definition.h"
#include "execute/program_rows.h"

namespace longnet {

class Executor;

// `count` (head, token) pairs: half of them spread over heads and tokens by the seed, the first and
// the last token included; then borders of segments and shards, and more spread ones. All pairs
// when there are not more than `count`.
std::vector<QuerySample> choose_samples(const ShardedProblem& sharded, int64_t count);

// Samples, and what they cover of a point's strata: its pairs (branch, head), (rank, head) and
// (rank, branch) that have a query. With a branch it is one that sees keys of it, and not its own
// token's alone where there is such a query.
struct SampleChoice {
  std::vector<QuerySample> queries;
  int64_t strata = 0;
  int64_t strata_left_out = 0;  // without a sampled query
};
// Adds to `samples` one query of each stratum that they leave out, as long as there are less than
// `budget`. `ranks`: those that run, empty: all; samples of others are dropped. Throws Error where
// all run and none has a sample's token.
//
//   12 heads on 8 ranks, 3 branches: 36 + 96 + 24 strata, covered by about 96 queries
SampleChoice stratify(const ShardedProblem& sharded, const std::vector<QuerySample>& samples,
                      int64_t budget, std::vector<Rank> ranks = {});

// Samples of one rank's shard and the sequences [first_batch, first_batch + batches): those of
// `all` that lie there, and extra ones: the first and the last token of the shard, rows on both
// sides of a border and a selected row of each branch; at least `count` where there are so many
// rows.
std::vector<QuerySample> choose_shard_samples(const ShardedProblem& sharded, Rank rank,
                                              int64_t first_batch, int64_t batches,
                                              const std::vector<QuerySample>& all, int64_t count);

// Errors of some samples; those of several sets add up.
struct SampleErrors {
  int64_t queries = 0, chosen = 0;                // chosen: without a walk's extra ones
  double difference = 0, norm = 0;                // sums of squares over all rows
  double spread_difference = 0, spread_norm = 0;  // over the spread samples alone
  double worst_row = 0;                           // relative L2 error
  double worst_lse = 0;                           // relative to max(1, |LSE|), if there is one
  bool rounded = false;                           // the output was sent in bf16
  void add(const SampleErrors& other);
  // Keeps the larger of each error and the smaller number of samples, for runs of the same samples.
  void keep_worst(const SampleErrors& other);
  static void fields(auto& e,
                     auto&& visit) {  // JSON has no infinity: an error that is null was one
    visit("queries", e.queries);
    visit("chosen", e.chosen);
    visit("difference", e.difference, {.null_is = INFINITY});
    visit("norm", e.norm, {.null_is = INFINITY});
    visit("spread_difference", e.spread_difference, {.null_is = INFINITY});
    visit("spread_norm", e.spread_norm, {.null_is = INFINITY});
    visit("worst_row", e.worst_row, {.null_is = INFINITY});
    visit("worst_lse", e.worst_lse, {.null_is = INFINITY});
  }
};

// Rows by the definition, made once and compared with the outputs of any number of runs.
struct ExpectedRows {
  std::vector<QuerySample> samples;
  std::vector<DefinedRow> rows;
  bool rounded = false;  // to bf16, as the output was sent
  // Errors of shorter rows are relative to this: a gradient may be 0, and is not where it is
  // rounded.
  double least_norm = 0;
};
// Computes rows by the definition: defined_rows, or what knows them already.
using Definition = std::function<std::vector<DefinedRow>(
    const AttentionProblem&, const DilatedPattern&, const std::vector<QuerySample>&)>;
ExpectedRows expected_rows(const AttentionProblem& problem, const DilatedPattern& pattern,
                           std::vector<QuerySample> samples, bool rounded,
                           const Definition& definition = defined_rows);
// Returns the rows of the samples in the shard and the sequences of `bound`. `problem`: the
// program's, or one whose batch contains the program's batch.
ExpectedRows expected_rows(const BoundProgram& bound, const AttentionProblem& problem,
                           const std::vector<QuerySample>& samples,
                           const Definition& definition = defined_rows);

// A row computed for a sample; compare_rows takes one for each sample.
struct OutputRow {
  std::span<const float> o;
  std::optional<float> lse;  // nothing when the output has none
};
SampleErrors compare_rows(const ExpectedRows& expected,
                          const std::function<OutputRow(size_t sample)>& computed);
// Compares the output of `bound` with these rows; `read` reads the program's memory.
SampleErrors compare_samples(const BoundProgram& bound, const ExpectedRows& expected,
                             const ReadRows& read = copy_host_rows);

struct CheckOutcome {
  int64_t queries = 0, chosen = 0;
  int64_t nan_values = 0;          // in the whole output, of all ranks: rows never written
  double rel_l2_error = 0;         // ||out - ref|| / ||ref|| over all sampled rows
  double spread_rel_l2_error = 0;  // the same over the spread samples; NaN without any
  double max_rel_error = 0;        // the worst row's
  double max_lse_error = 0;        // relative to max(1, |LSE|)
  double tolerance = 0;
  bool pass = false;
};

// Largest rel_l2_error that counts as right: 1e-6 up to 64K keys a query, 5e-6 beyond, and for
// exact attention on many ranks at least 2.5e-7 sqrt(P), the rounding of P merges (fp32 arithmetic;
// bf16 storage is read by both sides, so it adds nothing). A row may be 10 times as far off, an LSE
// 1e-5 of its size. An output that was sent in bf16 (`rounded`) is compared with rows that are
// rounded likewise, where few values fall on the other side of a tie: 5e-4.
double check_tolerance(const ShardedProblem& sharded, bool rounded = false);

// Largest errors that pass the check.
struct Tolerance {
  double rel_l2 = 0;  // 0: check_tolerance
  double lse = 1e-5;  // relative to max(1, |LSE|)
};
CheckOutcome judge(const SampleErrors& errors, int64_t nan_values, const ShardedProblem& sharded,
                   const Tolerance& tolerance = {});

// Every rank gets the outcome of all ranks' errors and NaN values. `tolerance` 0: the executor's
// default.
CheckOutcome judge_together(const Executor& executor, const SampleErrors& mine, int64_t nan_values,
                            Communicator& comm, double tolerance = 0);
// Each rank checks the samples that it owns in the output of the last run.
CheckOutcome check_samples(const Executor& executor, const std::vector<QuerySample>& samples,
                           Communicator& comm, double tolerance = 0,
                           const Definition& definition = defined_rows);

}  // namespace longnet
