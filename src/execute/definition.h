// The definition of attention under a pattern, query by query and key by key: what sampled rows of
// outputs and gradients are held against.
//
// It is written out from the papers (LongNet, arXiv 2307.02486, section 2; the Sparse Transformer,
// arXiv 1904.10509) and stands alone: it uses the structs of `pattern` but no function, and no
// schedules or slices. It shares only the generator of the inputs with the code that it checks. A
// wrong offset, K/V head, segment or part elsewhere is a difference here; scripts/layering_test.py
// checks that its source is independent.
//
//   N = 10, branch (w, r) = (4, 2), two heads:   segments          0 1 2 3   4 5 6 7   8 9
//                                                head 1 selects      1   3     5   7     9
//   query 5 of head 1 sees the keys 5 and 7: O = softmax(q5 . {k5, k7} / sqrt(d)) {v5, v7}
//
//   forward    attended_rows, defined_rows           O and LSE of queries
//   backward   defined_query_gradients               dQ of queries, from all their keys
//              add_key_gradients                     dK and dV of keys, from O and L of queries
//              add_defined_key_gradients             the same, from all keys of these queries
//   masks      first_seeing_query, nearest_key       who sees whom
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/problem.h"
#include "core/random.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

struct QuerySample {
  int64_t batch, head, token;
  // One of a set that follows from problem and pattern alone: over these, errors on different
  // numbers of ranks and in different layouts are errors of the same rows.
  bool spread = false;
  bool extra = false;  // a sample of one unit of a walk alone, beside those of the point
  bool operator==(const QuerySample& o) const {
    return batch == o.batch && head == o.head && token == o.token;
  }
};

struct DefinedRow {
  std::vector<double> o;  // [head_dim]
  double lse;  // ln of the sum over the multiset of keys; -inf when no branch selects the query
};

// Sets `row` to that of a token and its query head, or K/V head, in fp32; empty: it is not seen.
using ReadInput = std::function<void(Tensor, const QuerySample& at, std::vector<float>& row)>;
// Rows as the generator makes them and as they are stored. `problem` must outlive it.
ReadInput generated_rows(const AttentionProblem& problem);

// Returns the output row and LSE of each query, in their order, of these rows of Q, K and V. Keys
// that several queries see are read once; time grows with the number of keys that the queries see,
// memory does not.
std::vector<DefinedRow> attended_rows(const AttentionProblem& problem,
                                      const DilatedPattern& pattern,
                                      const std::vector<QuerySample>& queries,
                                      const ReadInput& read);
// The defined outputs of queries where inputs are the generator's rows.
inline std::vector<DefinedRow> defined_rows(const AttentionProblem& problem,
                                            const DilatedPattern& pattern,
                                            const std::vector<QuerySample>& queries) {
  return attended_rows(problem, pattern, queries, generated_rows(problem));
}

// ---- the backward pass: gradients of sum(dO . O) ----

// dQ of each query, in their order, from statistics of its own.
std::vector<std::vector<double>> defined_query_gradients(const AttentionProblem& problem,
                                                         const DilatedPattern& pattern,
                                                         const std::vector<QuerySample>& queries);

struct KeySample {
  int64_t batch, kv_head, token;
  bool operator==(const KeySample&) const = default;
};
struct KeyGradient {
  std::vector<double> k, v;  // [head_dim]
};
struct RowStatistics {
  double lse, delta;  // delta: dO . O
};
// The queries first_token + i * token_step of some heads and every sequence, and their statistics:
// who has them need not compute them again from all their keys.
struct QueryRows {
  int64_t first_head, end_of_heads;
  int64_t first_token, token_step, count;
  std::function<RowStatistics(const QuerySample&, const std::vector<float>& grad_out)> statistics{};
};
// Adds what these queries give to dK and dV of each key, all branches with the same statistics.
void add_key_gradients(const AttentionProblem& problem, const DilatedPattern& pattern,
                       const QueryRows& queries, const std::vector<KeySample>& keys,
                       std::vector<KeyGradient>& sums);
// The same of any mixture: computes the statistics of each query that sees a key from all keys that
// the query sees.
void add_defined_key_gradients(const AttentionProblem& problem, const DilatedPattern& pattern,
                               QueryRows queries, const std::vector<KeySample>& keys,
                               std::vector<KeyGradient>& sums);

// Keys of a branch, or those among them that are not of the query's own token.
struct SeenKeys {
  size_t branch = 0;
  bool others = false;
};
// Returns the first token from `from.token` on, below `end`, whose query sees such a key for that
// head; `end` when there is none.
int64_t first_seeing_query(const AttentionProblem& problem, const DilatedPattern& pattern,
                           SeenKeys seen, const QuerySample& from, int64_t end);
// Returns the token of a key of the branch that the query sees: the nearest before its own, else
// the nearest after it, else its own.
std::optional<int64_t> nearest_key(const AttentionProblem& problem, const DilatedPattern& pattern,
                                   size_t branch, const QuerySample& query);

}  // namespace longnet
