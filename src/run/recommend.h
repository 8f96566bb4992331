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
#include "io/record_table.h"
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

// Difference of times, as a share, that is a tie whatever their intervals: 0 on a cluster that says
// how far its predictions may be off (`error`), which widens these.
double tie_share(const ClusterSpec& cluster);

// "usp zigzag Pu=8": the algorithm with its options, whatever its pass.
std::string choice_text(PointParams params);
// Why a record stands where it does: "waits 20 % of the time for others; 1.3 x the first".
// `fastest_s` is the first's time.
std::string reason_text(const PointRecord& record, double fastest_s);
// Whether a record cannot be told from the first: the time of one lies in the interval of the
// other, or it is at most `share` slower. (Intervals that only overlap are no tie: an error that
// both have would count twice.)
bool ties(const PointRecord& record, const PointRecord& first, double share);
// Keys of the longest row that prices such attention; of two passes the shorter one.
int64_t longest_row(const DeviceSpec& device, const AttentionProblem& problem, Pass pass);
// Errors of predicted rings over several nodes, as docs/simulator-accuracy.md has them: the test
// `published` holds both to the cases.
inline constexpr std::string_view kRingsOverNodes =
    "rings over nodes may be predicted too fast: 18 blind cases were by 12 % in the mean, those of "
    "Hopper by 17 to 36 % (docs/simulator-accuracy.md#blind-cases)";
// "use usp Pu=8, 12 ms (11 ms to 14 ms); tied with it: ring, ulysses".
std::string answer_text(const std::vector<PointRecord>& ranked, double share);

// Records by time, the fastest first, apart by what they compute; and those that cannot run.
struct Ranking {
  std::vector<PointRecord> exact{}, dilated{}, stopped{};
  std::vector<std::string> same{};  // "usp Pu=1 (ring)": left out, for its ranks do the same
  // `program`: what its ranks do (SimulatedPoint).
  void add(PointRecord record, uint64_t program);
  void sort();
  bool has_guess(Guess guess) const;  // some candidate has
  // Whether a ring of exact attention over several nodes is the first or ties with it.
  bool answers_with_rings_over_nodes(const ClusterSpec& cluster, double share) const;
  // One line for candidates whose ranks do the same as another's, one for each reason that stops
  // some.
  std::vector<std::string> left_out() const;

 private:
  // Names of programs. An exact attention is no dilated one, though their ranks may do the same.
  std::map<std::pair<PatternKind, uint64_t>, std::string> names_;
};
// "a, b, c and 2 more": the first ones of a list.
std::string few_of(const std::vector<std::string>& names);

}  // namespace longnet
