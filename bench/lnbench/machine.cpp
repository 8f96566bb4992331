#include "lnbench/machine.h"

#include <sstream>

#include "io/environment.h"
#include "kernels/cpu/machine_peak.h"

namespace longnet {

double measure_peak_per_rank(World& world, int threads) {
  double peak = 0;
  world.run(world.size(), [&](Communicator& comm) {
    comm.barrier();
    const double mine = measure_fma_peak_flops(threads, 0.25);
    // What somebody else takes from one rank lowers no other's: the best is the machine's.
    const double best = comm.max_of(mine);
    if (comm.rank() == 0 || comm.transport() == "mpi") peak = best;
  });
  return peak;
}

std::vector<RankPlace> gather_places(Communicator& comm) {
  std::vector<RankPlace> places;
  for (const std::string& text : comm.all_texts(to_text(this_place())))
    places.push_back(place_from_text(text));
  return places;
}

std::vector<RankInfo> describe_ranks(World& world, int threads) {
  const auto texts =
      world.all_texts(capture_environment().hostname + " " + std::to_string(threads));
  std::vector<RankInfo> ranks;
  for (size_t r = 0; r < texts.size(); ++r) {
    RankInfo info{.rank = int(r)};
    std::istringstream(texts[r]) >> info.hostname >> info.cores;
    ranks.push_back(info);
  }
  return ranks;
}

}  // namespace longnet
