// From a config to its points: the product of the sweep's axes, in an order that never changes.
//
//   algorithm [dilated, ring] x ranks [1, 2] x seq_len [8K, 16K]  ->  eight points, dilated first,
//   seq_len fastest. Points with equal ids (clipping can make two alike) appear once.
//
//   usp on 4 ranks, ulysses_degree [0, 2, 4], 2 K/V heads  ->  two points, if `resolve` says that
//   0 becomes 2.
//
// dilated on 8 ranks, batch 4, replicas [1, "auto", 3]  ->  one group of 8 ranks, four groups of 2
// with a sequence each, and a point that is skipped because 3 divides neither.
//
// An axis that means nothing to an algorithm keeps its default there: layout [contiguous, zigzag]
// makes two points of ring and one of dilated.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/config.h"

namespace longnet {

struct ExpandOptions {
  int64_t world_size = 1;  // the number that "world" stands for
  int64_t max_ranks = 0;   // points with more ranks become skipped_unsupported; 0: no limit
  std::string filter{};    // --filter: points that do not match are dropped; "" keeps all
  Mode mode = Mode::kReal;
  std::string transport = "threads";  // "" where nothing moves bytes
  KnownNames known{};                 // the axes of each algorithm, and names for filters
  // Puts what an algorithm will really use in place of options that it chooses or limits itself.
  // Called before ids, so that a record says what ran, and points that are alike appear once.
  std::function<void(PointParams&)> resolve{};
};

// Returns a note for each axis where some algorithm supports none of the config's values and so
// gets the default: "sweep.collective=linear does not apply to ring: native instead".
std::vector<std::string> replaced_choices(const Config& config, const KnownNames& known);

// "" when every replica gets as many ranks and sequences as the others.
std::string why_uneven(const PointParams& params);

// Throws UsageError when no runnable point remains, saying what removed them. `threads` stays 0, in
// the id too, where the config leaves it to the launcher: a point has one id on every machine.
std::vector<Point> expand(const Config& config, const ExpandOptions& options = {});

// Makes a runnable point of more ranks skipped_unsupported (0: no limit). True when it did.
bool skip_too_many_ranks(Point& point, int64_t max_ranks);

// The branches of a point, by the rules of configs/schema/config.schema.json:
// per_rank = ceil(N / P), sequence = N, numbers are clipped to N; the first segment is w_0 and
// symbolic segments not longer than w_0 are dropped; exact duplicates (w, r) are dropped. Ratios:
//   geometric max(1, round(w / w_0)) · sqrt: sqrt(w / w_0) up to a power of two · capped
//   min(geometric, H) · list.
// N = 64K, P = 4, {2048, per_rank, sequence}, geometric: (2048, 1), (16384, 8), (65536, 32).
std::vector<DilatedBranch> resolve_branches(const DilatedConfig& dilated, int64_t seq_len,
                                            int64_t ranks, int64_t heads);

// {w, 1} and {w, 1, c} of the sparse pattern, both clipped to [1, N] and c to w. N = 16K: "sqrt"
// gives w = 128; "match_dilated" the c whose pairs come nearest to those of `dilated` (a pattern of
// the same problem), found by bisection because pairs grow with c.
DilatedPattern resolve_sparse(const SparseConfig& sparse, const AttentionProblem& problem,
                              const DilatedPattern& dilated);

}  // namespace longnet
