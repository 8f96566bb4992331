// Exact numbers of (query, key) pairs, in closed form: the base of every FLOP count.
#pragma once
#include "core/problem.h"
#include "core/token_range.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

// Pairs of a query in `queries` and a key in `keys`; causal: only keys at positions <= the query's.
//   queries 4, 6, 8 and keys 5, 6, 7: causal pairs 0 + 2 + 3 = 5.
int64_t count_pairs(const TokenRange& queries, const TokenRange& keys, bool causal);

// Pairs of one sequence and all heads in one branch, multiply by batch for a forward pass. Exact
// below 2^53; dense attention over 2^30 tokens and 12 heads has more than an int64_t holds.
double branch_pairs(const AttentionProblem& problem, const DilatedPattern& pattern, int branch);

// FLOPs of `pairs` pairs: two products of head_dim multiply-adds each.
inline double pair_flops(double pairs, int64_t head_dim) { return 4.0 * double(head_dim) * pairs; }

// The paper's estimate, summed over branches: 2 N w d / r^2 for each head and sequence.
double paper_macs(const AttentionProblem& problem, const DilatedPattern& pattern);

}  // namespace longnet
