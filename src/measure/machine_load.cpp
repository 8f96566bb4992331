#include "measure/machine_load.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <utility>

#include "measure/rank_place.h"

namespace longnet {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Ticks {
  double all = 0, busy = 0;
};

// Returns the ticks of these hardware threads together, from lines such as
// "cpu3 user nice system idle iowait irq softirq steal guest guest_nice": guests are in user.
Ticks ticks_of(std::string_view text, const std::set<int>& threads) {
  constexpr bool kBusy[8] = {true, true, true, false, false, false, false, true};
  Ticks sum;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu") || line.size() < 4 || line[3] == ' ') continue;
    std::istringstream words(line.substr(3));
    int thread = 0;
    words >> thread;
    double value = 0;
    for (const bool busy : kBusy) {
      if (!threads.contains(thread) || !(words >> value)) break;
      sum.all += value;
      if (busy) sum.busy += value;
    }
  }
  return sum;
}

std::string proc_stat() {
  std::ostringstream text;
  text << std::ifstream("/proc/stat").rdbuf();
  return text.str();
}

double process_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace

double busy_share_between(std::string_view before, std::string_view after,
                          const std::set<int>& threads, double own_ticks) {
  const Ticks then = ticks_of(before, threads), now = ticks_of(after, threads);
  const double passed = now.all - then.all;
  if (!(passed > 0)) return kUnknown;
  return std::clamp((now.busy - then.busy - own_ticks) / passed, 0.0, 1.0);
}

double measure_busy_share(double seconds) {
  const std::set<int> threads = this_place().cpus;
  const std::string before = proc_stat();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return busy_share_between(before, proc_stat(), threads);
}

OtherLoad::OtherLoad(std::set<int> cpus)
    : cpus_(std::move(cpus)), before_(proc_stat()), own_before_s_(process_cpu_s()) {}

double OtherLoad::own_s() const { return process_cpu_s() - own_before_s_; }

double OtherLoad::share(double own_s) const {
  if (passed_s() < kShortest_s) return kUnknown;
  return busy_share_between(before_, proc_stat(), cpus_, own_s * double(sysconf(_SC_CLK_TCK)));
}

}  // namespace longnet
