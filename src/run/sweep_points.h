// From a config to its points, with the names that this build knows.
#pragma once
#include <string>
#include <vector>

#include "io/config.h"
#include "io/expand.h"

namespace longnet {

// Overrides of a config by a command. Empty and 0: as the config or the machine says.
struct SweepRequest {
  std::string config;             // path of a JSON file
  std::vector<std::string> sets;  // overrides, "sweep.ranks=1,2,4"
  std::string filter;
  int ranks = 0;          // ranks as threads; of virtual ranks: sweep.ranks
  std::string mode;       // run.mode
  std::string transport;  // run.transport
  std::string replay;     // ranks of a virtual run, "0,17,4095"
  std::string max_time;   // "90s", "30m", "1.5h"
};

KnownNames known_names();
Config read_config(const SweepRequest& request);
// The points of a config, by the names and the algorithms that this build knows.
std::vector<Point> read_points(const Config& config, ExpandOptions options);
// Returns the transport: `launched`, or "" in the mode virtual. That mode throws UsageError under
// mpirun.
std::string transport_of(const Config& config, const std::string& launched);
// Throws UsageError where run.transport moves the memory of GPUs and a point's kernel works on the
// CPU.
void require_fitting_transport(const Config& config, const std::vector<Point>& points);

}  // namespace longnet
