// A journal survives a kill at any byte, and gives back every bit that was written.
#include "run/shard_journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/testing/test_support.h"
#include "io/sha256.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

UnitLine line(int rank) {
  return {{.unit = {.rank = rank},
           .received_bytes = int64_t{1} << 40,
           .input_digest = 0xFFFFFFFFFFFFFFFFu - uint64_t(rank),
           .heads = {{.rows = 7,
                      .sum = 1.0 / 3,
                      .sum_squares = 1e-300,
                      .min = -2.5,
                      .max = 1e300,
                      .lse_sum = -0.1,
                      .digest = 0x8000000000000001u}},
           .errors = {.queries = 3, .difference = 1e-17, .norm = 2}},
          /*walk=*/0,
          /*finished_utc=*/"2026-01-01T00:00:00Z",
          /*seconds=*/{{"attend", 0.1 * rank}}};
}

std::string text(const std::vector<UnitLine>& lines) {
  std::string all;
  for (const UnitLine& l : lines) all += dump_json(write_fields(l)) + "\n";
  return all;
}

TEST(ShardJournal, KeepsWhatWasWrittenWhereverItIsCut) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "longnet-journal-test").string();
  std::filesystem::remove(path);
  {
    ShardJournal journal(path, "abc", "plan");
    for (int rank : {0, 1, 2}) journal.append(line(rank));
  }
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_EQ(text(ShardJournal(path, "abc", "plan").lines()), text({line(0), line(1), line(2)}));
  const size_t last = bytes.size() - bytes.rfind('\n', bytes.size() - 2) - 1;
  for (const size_t cut : {size_t(1), last - 1, last}) {
    std::filesystem::resize_file(path, bytes.size() - cut);
    ShardJournal journal(path, "abc", "plan");
    EXPECT_EQ(text(journal.lines()), text({line(0), line(1)})) << cut;
    journal.append(line(2));
    EXPECT_EQ(text(ShardJournal(path, "abc", "plan").lines()), text({line(0), line(1), line(2)}));
  }
  EXPECT_THROW(ShardJournal(path, "abc", "another plan"), UsageError);
  std::filesystem::remove(path);
}

// Sums of a unit are those of the last whole line, whatever was cut.
TEST(ShardJournal, KeepsWhatAUnitLeavesToTheNext) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "longnet-journal-sums-test").string();
  std::filesystem::remove(path);
  const auto sums_of = [](int rank) { return std::vector<std::byte>(24, std::byte(rank + 1)); };
  {
    ShardJournal journal(path, "abc", "plan");
    for (int rank : {0, 1, 2}) journal.append(line(rank), sums_of(rank));
  }
  std::vector<std::byte> read(24);
  for (const int last : {2, 1}) {
    const ShardJournal journal(path, "abc", "plan");
    ASSERT_EQ(journal.lines().size(), size_t(last) + 1);
    journal.read_sums(read);
    EXPECT_EQ(read, sums_of(last));
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  }
  ShardJournal journal(path, "abc", "plan");  // its sums were replaced by those of the third
  EXPECT_THROW(journal.read_sums(read), UsageError);
  journal.append(line(1), sums_of(1));
  journal.append(line(2));  // nothing: no sums are left
  EXPECT_FALSE(std::filesystem::exists(path + ".sums0") ||
               std::filesystem::exists(path + ".sums1"));
  std::filesystem::remove(path);
}

TEST(ShardJournal, WhoGoesOnTakesTheShareThatWasBegunWith) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "longnet-journal-share-test").string();
  std::filesystem::remove(path);
  EXPECT_EQ(ShardJournal::share_of(path, 0.25), 0.25);
  const double share = 0.1872156239876;
  ShardJournal(path, "abc", "plan", share).append(line(0));
  EXPECT_EQ(ShardJournal::share_of(path, 0.25), share);
  EXPECT_EQ(ShardJournal(path, "abc", "plan", share).lines().size(), 1u);
  EXPECT_THROW(ShardJournal(path, "abc", "plan", 0.25), UsageError);
  std::filesystem::remove(path);
}

TEST(ShardJournal, AnInfiniteErrorStaysOne) {
  UnitLine wrong = line(0);
  wrong.errors.worst_row = std::numeric_limits<double>::infinity();
  const std::string path =
      (std::filesystem::temp_directory_path() / "longnet-journal-infinite").string();
  std::filesystem::remove(path);
  ShardJournal(path, "abc", "plan").append(wrong);
  const UnitLine back = ShardJournal(path, "abc", "plan").lines().at(0);
  EXPECT_EQ(back.errors.worst_row, wrong.errors.worst_row);
  std::filesystem::remove(path);
}

TEST(ShardJournal, RefusesALineThatWasChanged) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "longnet-journal-changed").string();
  std::filesystem::remove(path);
  ShardJournal(path, "abc", "plan").append(line(0));
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  const size_t norm = bytes.find("\"norm\":2");
  ASSERT_NE(norm, std::string::npos);
  bytes[norm + 7] = '3';
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    ShardJournal changed(path, "abc", "plan");
    FAIL() << "a changed line was taken";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
  }
  std::filesystem::remove(path);
}

TEST(ShardJournal, AShareIsAsItWasWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path("journal");
  EXPECT_EQ(ShardJournal::share_of(path, 0.5), 0.5);
  ShardJournal(path, "abc", "plan", 0.25);
  EXPECT_EQ(ShardJournal::share_of(path, 0.5), 0.25);
  std::string text = read_file_text(path, "");
  text.replace(text.find("0.25"), 4, "0.20");
  for (const std::string& header :
       {text, sealed(R"({"journal":3,"share":-1e308})") + "\n", sealed(R"({"share":"x"})") + "\n",
        std::string("{\"journal\":2,\"share\":0.25}\n")}) {
    folder.write("journal", header);
    EXPECT_THROW(ShardJournal::share_of(path, 0.5), UsageError) << header;
  }
}

// Else the first waits for a writer and the second has no end.
TEST(ShardJournal, APipeOrALinkInItsPlaceIsAnErrorAtOnce) {
  const TemporaryFolder folder;
  const std::string real = folder.path("real");
  ShardJournal(real, "abc", "plan").append(line(0), std::vector<std::byte>(24));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0644), 0);
  std::filesystem::create_symlink("/dev/zero", folder.path("zero"));
  std::filesystem::create_symlink(real, folder.path("link"));
  for (const char* name : {"pipe", "zero", "link"}) {
    const std::string path = folder.path(name);
    EXPECT_THROW(ShardJournal::share_of(path, 0.5), UsageError) << name;
    EXPECT_THROW(ShardJournal(path, "abc", "plan"), UsageError) << name;
    std::filesystem::rename(path, real + ".sums0");
    std::vector<std::byte> sums(24);
    EXPECT_THROW(ShardJournal(real, "abc", "plan").read_sums(sums), UsageError) << name;
  }
}

}  // namespace
}  // namespace longnet
