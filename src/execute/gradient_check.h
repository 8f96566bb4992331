// Checks the gradients of a backward pass: sampled rows of dQ, dK and dV against the definition
// (definition.h), and laws of conservation over all rows.
//
// A row of dQ is computed from all keys of its query. A row of dK and dV is a sum over queries
// whose LSE would each take all keys again, so it takes O and L of the run, of which the rows of dQ
// are samples; each rank adds what its own queries give. Any other mixture than the exact one by
// LSE needs O of each branch alone, which a run does not keep: it is computed from all keys, for as
// many chosen keys as kMostPairs allows.
#pragma once
#include <array>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "execute/executor.h"
#include "execute/tolerances.h"
#include "kernels/row_worker.h"

namespace longnet {

using ExpectedGradients = std::array<ExpectedRows, 3>;  // dQ, dK, dV
using GradientErrors = std::array<SampleErrors, 3>;

// Keys, and what they cover: the pairs (branch, K/V head) of which a sampled query sees a key, and
// the pairs (rank, K/V head). With a branch it is a key of another token than the query's, where
// there is one.
struct KeyChoice {
  std::vector<KeySample> keys;
  int64_t strata = 0, strata_left_out = 0;
  bool is_full = false;  // one more key would be beyond kMostKeys or kMostPairs
};
inline constexpr int64_t kFewestKeys = 32, kKeysPerRank = 8, kMostKeys = 256;
// Pairs of query and key behind O and L of branches: seconds of a core.
inline constexpr double kMostPairs = 1 << 26;
// Chooses one key of each stratum and, spread over the queries, so many more that there are
// kFewestKeys, or kKeysPerRank of each rank: a rank adds what its own queries give to each key.
// `ranks`: those that run, empty: all.
//
//   4 K/V heads on 2 ranks, 3 branches: 12 + 8 strata, and 32 keys
KeyChoice choose_keys(const ShardedProblem& sharded, const std::vector<QuerySample>& queries,
                      const std::set<Rank>& ranks = {});

// Returns the part of the keys' dK and dV that the rank's own queries add: of a mixture by LSE from
// O and L of the rows whose delta the program takes. `problem`: the program's, or one whose batch
// contains its batch.
std::vector<KeyGradient> gradients_of_own_queries(const BoundProgram& bound,
                                                  const AttentionProblem& problem,
                                                  const std::vector<KeySample>& keys);
// Gradients of keys as rows to compare, `tensor` kKey or kValue.
ExpectedRows expected_keys(const std::vector<KeySample>& keys,
                           const std::vector<KeyGradient>& gradients, Tensor tensor);
// dQ of the queries, and dK and dV of the keys, which have these gradients: those that the rank
// has.
ExpectedGradients expected_gradients(const BoundProgram& bound, const AttentionProblem& problem,
                                     const std::vector<QuerySample>& queries,
                                     const std::vector<KeySample>& keys,
                                     const std::vector<KeyGradient>& gradients);
// `read`: as in compare_samples.
GradientErrors compare_gradients(const BoundProgram& bound, const ExpectedGradients& expected,
                                 const ReadRows& read = copy_host_rows);
// Outcomes of gradients against the largest relative L2 error that passes (tolerances.h).
std::array<CheckOutcome, 3> judge_gradients(const GradientErrors& errors,
                                            const ShardedProblem& sharded, double tolerance);
// The outcome of an output together with those of its gradients: the worst of each figure.
CheckOutcome worst_of(CheckOutcome output, const std::array<CheckOutcome, 3>& gradients);

class GradientCheck {
 public:
  // Takes the queries, and keys that they see (choose_keys). The output of the forward pass must be
  // there. The executor must outlive it. Collective.
  GradientCheck(const Executor& executor, const std::vector<QuerySample>& queries,
                Communicator& comm);

  const KeyChoice& keys() const { return keys_; }
  GradientErrors compare() const;  // errors of the last run
  // Every rank gets the outcomes of all ranks' errors (judge_gradients).
  std::array<CheckOutcome, 3> judge_together(const GradientErrors& mine, Communicator& comm,
                                             double tolerance) const;

 private:
  const Executor& executor_;
  KeyChoice keys_;
  ExpectedGradients expected_;
};

// Laws that hold for any input: adding a vector to all keys changes no output, scaling Q up and K
// down neither, and the output is linear in V. Each is the difference of what should be equal over
// the sum of the absolute terms of all ranks, and is right up to the executor's tolerance.
struct Conservation {
  double keys = 0;    // the sum of dK of a sequence and K/V head is 0; the worst one
  double scores = 0;  // <Q, dQ> = <K, dK>
  double values = 0;  // <V, dV> = <O, dO>
  double tolerance = kLawTolerance;
  double values_tolerance = tolerance;  // for `values`: more where O was sent in bf16
  // Absolute terms of <Q, dQ>, <K, dK>, <V, dV>: up to rounding the same for any number of ranks.
  std::array<double, 3> terms{};
  bool hold() const {
    return keys <= tolerance && scores <= tolerance && values <= values_tolerance;
  }
  void keep_worst(const Conservation& other);  // the larger of each law, NaN the largest
};
// Sums of the laws' terms. Those of several shards add up.
struct LawTerms {
  // <Q, dQ>, <K, dK>, <V, dV>, <O, dO>, then the same of absolute terms.
  std::vector<double> products = std::vector<double>(8);
  // Sums of dK by sequence and K/V head, each followed by that of its absolute values [head_dim].
  std::vector<double> keys{};
  // Adds terms; those of their first sequence lie at `at` in `keys`.
  void add(const LawTerms& other, size_t at);
  static void fields(auto& t, auto&& visit) {
    visit("products", t.products);
    visit("keys", t.keys);
  }
};
class LawSums {
 public:
  // `problem`: with as many sequences as there are, `first_batch` and on.
  LawSums(const AttentionProblem& problem, int64_t first_batch);
  void add(const BoundProgram& bound);  // all rows of a rank
  // Rows of K and V beside their gradients, as in shard_rows.
  void add_keys(const std::vector<FillRows>& rows, const std::vector<FillRows>& gradients);
  LawTerms terms() const;

 private:
  // a . b and |a| . |b| of rows, column by column.
  class Products {
   public:
    explicit Products(int64_t head_dim) : sums_(size_t(head_dim)), absolute_(size_t(head_dim)) {}
    void add(std::span<const float> a, std::span<const float> b);
    double sum() const;
    double absolute() const;

   private:
    std::vector<double> sums_, absolute_;
  };
  AttentionProblem problem_;
  int64_t first_batch_;
  Products queries_, keys_, values_, outputs_;
  std::vector<double> key_sums_;
};
Conservation conservation(const LawTerms& terms, const ShardedProblem& sharded,
                          bool output_is_partial, double tolerance = kLawTolerance);
// The laws on the gradients of the last run. Collective.
Conservation conservation(const Executor& executor, Communicator& comm);

}  // namespace longnet
