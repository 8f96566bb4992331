#include "io/durable_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "core/testing/test_support.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

TEST(DurableFile, AFullDiskLeavesNoHalfLine) {
  const TemporaryFolder folder;
  const std::string path = folder.path("lines");
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  DurableFile file(path, O_WRONLY | O_CREAT | O_APPEND);
  file.write_all("first\n");
  rlimit small = old;
  small.rlim_cur = 10;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(file.write_all("second\n"), Error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file_text(path, ""), "first\n");
}

}  // namespace
}  // namespace longnet
