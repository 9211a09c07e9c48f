/* A file system that hangs: as long as the file $STAND_IN_HUNG exists, statvfs of the path $STAND_IN_MOUNT blocks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TURN = 10000 }; /* microseconds */

static void wait_for(const char *path)
{
    const char *mount = getenv("STAND_IN_MOUNT"), *hung = getenv("STAND_IN_HUNG");
    while (mount && hung && !strcmp(path, mount) && !access(hung, F_OK))
        usleep(TURN);
}

#define STATVFS(name) \
    int name(const char *restrict path, struct name *restrict space) \
    { \
        int (*next)(const char *, struct name *) = dlsym(RTLD_NEXT, #name); \
        wait_for(path); \
        return next(path, space); \
    }

STATVFS(statvfs)
STATVFS(statvfs64) /* what programs with large files call */
