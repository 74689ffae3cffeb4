// The file in the coordinator's data folder by which a worker shows that it sees that folder.
#pragma once

namespace espalier {

// Holds a random name of the folder.
inline constexpr char kDataDirIdFile[] = "data-dir-id";

}  // namespace espalier
