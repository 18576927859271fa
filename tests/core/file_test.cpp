#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "verbatim/error.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

// A folder with `first/tool` and `second/tool`, programs, and `text/tool`, which is none.
class FindProgram : public testing::Test {
 protected:
  FindProgram() {
    for (const char* folder : {"first", "second", "text"}) {
      fs::create_directory(root_ / folder);
      write_file(root_ / folder / "tool", "");
    }
    for (const char* folder : {"first", "second"})
      fs::permissions(root_ / folder / "tool", fs::perms::owner_all);
  }
  ~FindProgram() override {
    path_ ? setenv("PATH", path_->c_str(), 1) : unsetenv("PATH");
    fs::remove_all(root_);
  }

  static fs::path make_root() {
    std::string name = (fs::temp_directory_path() / "find_program.XXXXXX").string();
    return mkdtemp(name.data());
  }

  const fs::path root_ = make_root();
  const std::optional<std::string> path_ =
      std::getenv("PATH") ? std::optional<std::string>(std::getenv("PATH")) : std::nullopt;
};

TEST_F(FindProgram, TakesTheFirstThatThePathLeadsTo) {
  const std::string root = root_.string();
  const std::string first = root + "/first", second = root + "/second", text = root + "/text";
  struct Case {
    std::string path, expected;
  };
  for (const Case& c : {
           Case{first, first + "/tool"},
           Case{first + ":" + second, first + "/tool"},
           Case{second + ":" + first, second + "/tool"},
           Case{root + "/none:" + second, second + "/tool"},
           Case{second + ":", second + "/tool"},
           Case{root + "/none", ""},
           Case{"", ""},
       }) {
    setenv("PATH", c.path.c_str(), 1);
    EXPECT_EQ(find_program("tool"), c.expected) << c.path;
  }
  setenv("PATH", (text + ":" + first).c_str(), 1);
  EXPECT_EQ(find_program("tool"), first + "/tool") << "a file that cannot be run is none";
  EXPECT_EQ(find_program("other"), "");
  setenv("PATH", (root + ":" + first).c_str(), 1);
  fs::create_directory(root_ / "tool");
  EXPECT_EQ(find_program("tool"), first + "/tool") << "a folder is none";
  unsetenv("PATH");
  EXPECT_EQ(find_program("tool"), "");
}

// As any other new file has it: of the process's mask, which stays what it was.
TEST(WriteFile, GrantsWhatTheMaskLeaves) {
  std::string name = (fs::temp_directory_path() / "write_file.XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  const mode_t before = umask(0027);
  write_file(root / "new", "text");
  write_file(root / std::string(255, 'n'), "the longest name");
  EXPECT_EQ(umask(before), 0027u);
  EXPECT_EQ(fs::status(root / "new").permissions(), fs::perms(0640));
  EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 2);
  EXPECT_THROW(write_file(root / std::string(256, 'n'), ""), Error);
  EXPECT_THROW(read_text(root / std::string(256, 'n')), Error);
  EXPECT_THROW(check_writable(root / std::string(256, 'n')), Error);
  fs::remove_all(root);
}

// What a link leads to is replaced, there or not; what a program has open is added to, as text that
// it has already been sent must stay.
TEST(WriteFile, LeavesLinks) {
  std::string name = (fs::temp_directory_path() / "write_file.XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  fs::create_directory(root / "elsewhere");
  fs::create_symlink("elsewhere/file", root / "link");
  fs::create_symlink(root / "link", root / "elsewhere" / "link");
  for (const char* text : {"made", "replaced"}) {
    write_file(root / "elsewhere" / "link", text);
    EXPECT_TRUE(fs::is_symlink(root / "link") && fs::is_symlink(root / "elsewhere" / "link"));
    EXPECT_EQ(read_text(root / "elsewhere" / "file"), text);
  }
  fs::create_symlink("circle", root / "circle");
  EXPECT_THROW(check_writable(root / "circle"), Error);
  EXPECT_THROW(write_file(root / "circle", ""), Error);

  FILE* open = std::fopen((root / "open").c_str(), "w");
  std::fputs("first ", open);
  std::fflush(open);
  const std::string number = std::to_string(fileno(open));
  fs::create_symlink("/proc/self/fd/" + number, root / "to_open");
  write_file("/proc/self/fd/" + number, "second ");
  write_file(root / "to_open", "third");
  EXPECT_EQ(read_text(root / "open"), "first second third");
  EXPECT_TRUE(fs::is_symlink(root / "to_open"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 5);
  std::fclose(open);
  fs::remove_all(root);
}

TEST(CheckWritable, TakesNoFileForAFolder) {
  std::string name = (fs::temp_directory_path() / "check_writable.XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  write_file(root / "file", "mine");
  fs::create_symlink("file/below", root / "link");
  check_writable(root / "file");
  check_writable(root / "new");
  for (const char* below : {"file/below", "file/", "link"})
    EXPECT_THROW(check_writable(root / below), Error) << below;
  fs::remove_all(root);
}

TEST(MakeFolder, SaysWhatIsInTheWay) {
  std::string name = (fs::temp_directory_path() / "make_folder.XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  make_folder(root / "a" / "b");
  make_folder(root / "a" / "b");
  EXPECT_TRUE(fs::is_directory(root / "a" / "b"));
  write_file(root / "file", "mine");
  for (const fs::path& path : {root / "file", root / "file" / "below" / "it"}) {
    try {
      make_folder(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.details().argument, path.string());
      EXPECT_EQ(error.details().got, "'" + (root / "file").string() + "': no folder");
      EXPECT_EQ(error.details().nearest, root.string());
    }
  }
  check_folder(root / "new" / "one");
  EXPECT_FALSE(fs::exists(root / "new"));
  EXPECT_EQ(read_text(root / "file"), "mine");
  fs::remove_all(root);
}

}  // namespace
}  // namespace verbatim
