// The ranks that a command runs on, processes under a launcher, else threads of this process; and
// their machine: its limits, its measured peak, and the place of each rank.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/host_transport.h"
#include "io/config.h"
#include "io/result.h"
#include "measure/machine_load.h"
#include "measure/rank_place.h"

namespace longnet {

class World {
 public:
  // Joins the processes that were `launched`, which must outlive it; null: `thread_ranks` threads.
  // Throws when the transport finds other processes than the launcher has started.
  explicit World(int thread_ranks, const HostTransport* launched = launched_transport());

  int rank() const { return is_one_process() ? 0 : all().rank(); }
  bool is_root() const { return rank() == 0; }
  int size() const { return is_one_process() ? thread_ranks_ : all().size(); }  // most of a point
  bool is_one_process() const { return processes_ == nullptr; }  // its ranks are threads
  std::string transport() const { return name_of(launched_); }
  std::string library_version() const;  // the transport's; "" for threads
  int threads_per_rank() const;         // cores of this process over its ranks on this machine

  // Runs `rank_main` on the first `ranks` ranks; returns on every process when all have ended, with
  // what it returned on rank 0 (threads) or on this process's rank (processes; nothing where that
  // has no part). An exception of a rank is thrown again (threads), or ends the job (processes).
  template <class RankMain>
  auto run(int ranks, const RankMain& rank_main) {
    using Returned = std::invoke_result_t<RankMain, Communicator&>;
    if constexpr (std::is_void_v<Returned>) {
      run_ranks(ranks, rank_main);
    } else {
      Returned returned{};
      run_ranks(ranks, [&](Communicator& comm) {
        Returned own = rank_main(comm);
        if (comm.rank() == rank()) returned = std::move(own);
      });
      return returned;
    }
  }
  template <class RankMain>
  auto run(const RankMain& rank_main) {  // on all
    return run(size(), rank_main);
  }
  // Rank 0's flag, on every process.
  bool agree(bool root_flag) {
    return is_one_process() ? root_flag : all().broadcast_flag(root_flag);
  }
  // The smallest value of all processes, on every process.
  double smallest(double value) { return is_one_process() ? value : -all().max_of(-value); }
  // One text per rank: host name and cores.
  std::vector<std::string> all_texts(const std::string& mine) {
    return is_one_process() ? std::vector<std::string>(size_t(thread_ranks_), mine)
                            : all().all_texts(mine);
  }
  int ranks_on_this_machine() const { return local_ranks_; }

  // Marks a moment: before each point. Collective.
  void mark_load();
  // The share that other programs took since the last such moment OtherLoad::kShortest_s ago: short
  // points have one together with those before them. Negative: not known. Collective.
  double busy_share();

 private:
  void run_ranks(int ranks, const std::function<void(Communicator&)>& rank_main);
  Communicator& all() const { return processes_->communicator(); }  // all processes
  const HostTransport* launched_;
  std::unique_ptr<RankProcesses> processes_;  // null: ranks are threads
  int thread_ranks_, local_ranks_ = 1;
  std::optional<OtherLoad> load_, next_load_;  // since the last two moments that were far apart
};

// Share of the FMA peak that a forward pass can be expected to reach; used for estimates only.
inline constexpr double kExpectedShareOfPeak = 0.7;

// Limits of the machine that predictions use: memory, speed and time.
struct MachineLimits {
  int64_t memory_bytes = 0;   // the machine's, for all its ranks
  double flops_per_rank = 0;  // attainable by one rank
  double point_timeout_s = 0;
  // Hardware threads for the ranks of this machine together; 0: as many as they want.
  int cores = 0;
  VirtualConfig virtual_ranks{};
  int replayed_ranks = 0;           // 0: all run
  int devices = 0;                  // GPUs of this machine; 0: not known
  int64_t device_memory_bytes = 0;  // memory of one GPU
  bool device_limit_given = false;  // by memory.limit_bytes: buffers beyond it are refused
  double device_flops = 0;          // attainable by one
  bool to_run = false;              // points that need a GPU are refused where there is none
};

MachineLimits machine_limits(const Config& config, double peak_flops_per_rank);
// Ranks of a run without mpirun: one per usable core, or per GPU where every kernel runs on GPUs.
int default_world_size(const Config& config);

// Fused multiply-adds per second times 2 that one rank reaches with `threads` threads while all
// ranks of the world work at once. Shares of peak are relative to it.
double measure_peak_per_rank(World& world, int threads);

// Returns the values of all ranks (of a World or a Communicator), in rank order, on every rank.
// They travel as JSON: T is a struct with a list of fields, or a list or map of such values.
// Collective.
template <class Ranks, class T>
std::vector<T> gather(Ranks& ranks, const T& mine) {
  std::vector<T> all;
  for (const std::string& text : ranks.all_texts(dump_json(to_json(mine))))
    from_json(parse_json(text, "a rank's value"), all.emplace_back());
  return all;
}
// The hardware threads of those on the caller's machine.
std::set<int> cpus_here(std::span<const RankPlace> places);
// Share of the cores that worked for others than the processes of `comm` since `load` was made, of
// all machines the largest; negative: not known. Collective.
double busy_share(const OtherLoad& load, Communicator& comm);

// `on_devices`: ranks go round the GPUs of their machine, and say which they have.
std::vector<RankInfo> describe_ranks(World& world, int threads, bool on_devices);

// "8 x NVIDIA H100 on this machine"
std::string devices_text();
// The GPUs of this machine, a line each: "NVIDIA H200, compute capability 9.0, 132 SMs, 139.8 GiB,
// 18 NVLinks, PCIe 5 x16"; the links where NVML tells.
std::vector<std::string> device_lines();
// Versions of what drives them: cuda, driver, cudnn, nccl.
std::map<std::string, std::string> device_software();
// The machine as the ranks of `world` have it; `busy_share`: measured before they began.
Environment environment_of(const World& world, double busy_share, bool with_devices = false);

}  // namespace longnet
