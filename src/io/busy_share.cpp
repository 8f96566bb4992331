#include "io/busy_share.h"

#include <sched.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>

namespace longnet {
namespace {

struct Ticks {
  double all = 0, idle = 0;
};

// "cpu3 user nice system idle iowait irq softirq steal guest guest_nice": guests are in user.
std::map<int, Ticks> ticks_of(std::string_view text) {
  std::map<int, Ticks> out;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu") || line.size() < 4 || line[3] == ' ') continue;
    std::istringstream words(line.substr(3));
    int thread = 0;
    words >> thread;
    Ticks& t = out[thread];
    double value = 0;
    for (int column = 0; column < 8 && words >> value; ++column) {
      t.all += value;
      if (column == 3 || column == 4) t.idle += value;
    }
  }
  return out;
}

std::string proc_stat() {
  std::ifstream file("/proc/stat");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<int> usable_threads() {
  std::vector<int> threads;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return threads;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) threads.push_back(i);
  return threads;
}

}  // namespace

double busy_share_between(std::string_view before, std::string_view after,
                          const std::vector<int>& threads) {
  const auto then = ticks_of(before), now = ticks_of(after);
  Ticks passed;
  for (const int thread : threads) {
    const auto a = then.find(thread), b = now.find(thread);
    if (a == then.end() || b == now.end()) continue;
    passed.all += b->second.all - a->second.all;
    passed.idle += b->second.idle - a->second.idle;
  }
  return passed.all > 0 ? 1 - passed.idle / passed.all : std::numeric_limits<double>::quiet_NaN();
}

double measure_busy_share(double seconds) {
  const std::vector<int> threads = usable_threads();
  const std::string before = proc_stat();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return busy_share_between(before, proc_stat(), threads);
}

}  // namespace longnet
