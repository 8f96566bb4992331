#include "comm/threads/thread_world.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "core/check.h"

namespace longnet {
namespace {

TEST(ThreadWorld, AFailingRankEndsTheOthers) {
  try {
    run_on_threads(4, [](Communicator& comm) {
      const auto part = comm.first_ranks(3);
      if (comm.rank() == 2) throw Error("broke");
      if (part) part->barrier();
      comm.barrier();
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 2: broke");
  }
}

// As much address space as there is now and a bit: no stack of a thread fits.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    getrlimit(RLIMIT_AS, &old_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit now{rlim_t(pages) * 4096 + (rlim_t{20} << 20), old_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
  }
  ~NoMoreThreads() { setrlimit(RLIMIT_AS, &old_); }

 private:
  rlimit old_{};
};

#if !defined(LONGNET_ADDRESS_SANITIZER) && \
    !defined(LONGNET_THREAD_SANITIZER)  // they need address space
TEST(ThreadWorld, ARankThatCannotStartIsAnErrorOfTheOthers) {
  const auto has = [](const std::function<void()>& f, const std::string& words) {
    try {
      const NoMoreThreads limit;
      f();
    } catch (const Error& e) {
      return std::string(e.what()).find(words) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(has([] { run_on_threads(64, [](Communicator& comm) { comm.barrier(); }); },
                  "could not start"));
  EXPECT_TRUE(has([] { require_threads(64); }, "of 64 threads could start"));
}
#endif

TEST(ThreadWorld, ThreadsThatCanStart) { require_threads(8); }

}  // namespace
}  // namespace longnet
