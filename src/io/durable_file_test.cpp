#include "io/durable_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

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

TEST(DurableFile, TakesWholeLinesUntilOneIsRefused) {
  std::vector<std::string> taken;
  const auto take = [&](const std::string& line, bool is_last) {
    taken.push_back(line + (is_last ? "." : ""));
    return line != "no";
  };
  EXPECT_EQ(take_lines("", take), 0);
  EXPECT_EQ(take_lines("cut", take), 0);
  EXPECT_EQ(take_lines("a\n\nb\n", take), 5);
  EXPECT_EQ(take_lines("c\ncut", take), 2);
  EXPECT_EQ(take_lines("d\nno\ne\n", take), 2);
  EXPECT_EQ(taken, (std::vector<std::string>{"a", "", "b.", "c", "d", "no"}));
}

TEST(DurableFile, APipeOrALinkInItsPlaceIsAnErrorAtOnce) {
  const TemporaryFolder folder;
  const std::string pipe = folder.path("pipe"), link = folder.path("link");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(folder.path("elsewhere"), link);
  for (const std::string& path : {pipe, link, folder.path("")})
    for (const int flags : {O_WRONLY | O_CREAT | O_APPEND, O_RDONLY})
      EXPECT_THROW(DurableFile(path, flags), Error) << path << flags;
  EXPECT_FALSE(std::filesystem::exists(folder.path("elsewhere")));
}

TEST(DurableFile, APathAtFaultIsTheUsers) {
  const TemporaryFolder folder;
  const std::string file = folder.path("file");
  DurableFile(file, O_WRONLY | O_CREAT);
  for (const std::string& path : {folder.path("missing/file"), file + "/below",
                                  folder.path(std::string(300, 'x')), std::string("/proc/new")})
    EXPECT_THROW(DurableFile(path, O_WRONLY | O_CREAT), UsageError) << path;
}

}  // namespace
}  // namespace longnet
