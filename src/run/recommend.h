// Questions of `lnbench recommend` to a cluster, and their answers: every algorithm with its
// options on one length and number of ranks, simulated and ranked.
//
//   Question ─> question_config ─> points, simulated one by one ─> Ranking::add ─> exact, dilated
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/axes.h"
#include "io/record.h"
#include "simulate/cluster.h"

namespace longnet {

struct Question {
  std::string seq_len, dtype = "bf16";  // "16M"
  int ranks = 0;
  int64_t heads = standard_params().problem.num_heads, kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = standard_params().problem.head_dim, batch = 1;
  bool causal = false;
  std::string pass = "forward";
  std::vector<std::string> dilated_segments{};  // "2048", "per_rank", "sequence"; empty: default
};

// Returns the question as the text of a config: one length, one number of ranks, every algorithm
// and option.
std::string question_config(const Question& question, const ClusterSpec& cluster);

// Relative difference that predictions for this cluster cannot tell from none.
double tie_share(const ClusterSpec& cluster);

// "usp zigzag Pu=8": the algorithm with its options, whatever its pass.
std::string choice_text(PointParams params);
// Why a record stands where it does: "waits 20 % of the time for others; 1.3 x the first".
// `fastest_s` is the first's time.
std::string reason_text(const PointRecord& record, double fastest_s);
// Places of `ranked` that the first cannot be told from: those less than `tie` slower, its own
// among them.
size_t tied(const std::vector<PointRecord>& ranked, double tie);
// "use usp Pu=8, 12 ms (11 ms to 14 ms); places 2 to 3 tie with it: ring, ulysses".
std::string answer_text(const std::vector<PointRecord>& ranked, double tie);

// Records by time, the fastest first, apart by what they compute; and those that cannot run.
struct Ranking {
  std::vector<PointRecord> exact{}, dilated{}, stopped{};
  std::vector<std::string> same{};  // "usp Pu=1 (ring)": left out, for its ranks do the same
  // `program`: what its ranks do (SimulatedPoint).
  void add(PointRecord record, uint64_t program);
  void sort();
  // One line for each reason, with the algorithm that it stops.
  std::vector<std::string> reasons_of_stopped() const;

 private:
  std::map<uint64_t, std::string> names_;  // of programs
};
// "a, b, c and 2 more": the first ones of a list.
std::string few_of(const std::vector<std::string>& names);

}  // namespace longnet
