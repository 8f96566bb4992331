// Published measurements of others, as data, against the simulator.
//
//   configs/published/usp.json ─> load_published ─> predict ─> errors_of (by family and size)
//
// A file holds the cases of one source: setup, value, unit, tolerance, and the cluster that they
// ran on with the software's kernel, merge and host as what-ifs. No number that a prediction rests
// on is fitted to errors. Where a number of a cluster file was read in the same source, the file
// says so (`informs`), and its cases are not held out. Cases that came after the model (`blind`)
// have groups of their own, which no goal counts. Schema: configs/schema/published.schema.json.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_operations.h"
#include "run/simulate_point.h"

namespace longnet {

struct PublishedCase {
  std::string id, source;
  std::string file{};                   // its name, without a folder
  JsonNode setup = JsonNode::object();  // as the file has it, keys of all its cases included
  SimulatePoint how{};
  std::optional<CommOperation> operation{};  // none: attention, by `params`
  PointParams params{};
  double bytes = 0;  // moved by an operation, as nccl-tests counts them
  double published_s = 0, tolerance = 0;
  bool held_out = true;
  bool blind = false;  // found after the model was made

  bool is_step() const { return !operation && params.scope == Scope::kModel; }
  std::string family() const;       // "ring", "all_gather", "steps, local"
  std::string size() const;         // "4K to 16K tokens a rank", "16 MB and more"
  std::string kind() const;         // "attention", "training steps", "attention, blind"
  std::string error_group() const;  // "rings", "one GPU"; "messages"; "models"
};

struct Prediction {
  double seconds = 0, low_s = 0, high_s = 0;
  bool beyond_table = false;  // a guess (Price, simulate/cost_model.h)
  std::string reason{};       // why there is none
  bool holds(double published_s) const { return low_s <= published_s && published_s <= high_s; }
};

struct PublishedErrors {
  std::string name;
  int cases = 0;
  double median = 0, p95 = 0;  // median and 95th percentile of |predicted / published - 1|
  double bias = 0;             // geometric mean of predicted / published, less 1
  int inside = 0;              // cases in the interval of their prediction
};

struct PublishedOrder {
  int pairs = 0, right = 0;
};

inline constexpr const char* kPublishedCases = "configs/published";
// All cases of the folder's files, in the order of their names; of `kPublishedCases`, where there
// is no such folder, the shipped ones. Throws UsageError.
std::vector<PublishedCase> load_published(std::string folder);
Prediction predict(const PublishedCase& published);
// Groups of all cases: those on which the model was made, those found later.
inline const std::string kDevelopment = "all development cases", kBlind = "all blind cases";
// Returns the errors per kind of case (all, held out), then per group of algorithms, source, family
// and size, at last of all cases.
std::vector<PublishedErrors> errors_of(const std::vector<PublishedCase>& cases,
                                       const std::vector<Prediction>& predictions);
// Pairs of algorithms on one problem that are more than 5 % apart.
PublishedOrder order_of(const std::vector<PublishedCase>& cases,
                        const std::vector<Prediction>& predictions);
// A bound of the errors of cases that are not blind, and what is found. Groups without cases have
// none.
struct PublishedGoal {
  std::string name;
  double bound, found;
  bool reached;
  bool least = false;  // the bound is the least that reaches the goal, not the most
};
std::vector<PublishedGoal> goals_of(const std::vector<PublishedErrors>& errors,
                                    const PublishedOrder& order);

}  // namespace longnet
