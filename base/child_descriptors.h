// What a child process inherits.
#pragma once

namespace espalier {

// Marks all open files from descriptor `first` on to be closed by exec: a child that keeps a
// listening socket holds its port after the parent's end, and clients that connect to it wait for
// ever. For use between fork and exec: makes system calls only.
void CloseOnExecFrom(int first);

}  // namespace espalier
