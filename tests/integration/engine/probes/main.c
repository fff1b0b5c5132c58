#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "eat") == 0)
        for (;;) {
            char *p = mmap(NULL, 1u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p != MAP_FAILED)
                memset(p, 1, 1u << 20);
        }
    if (argc > 1 && strcmp(argv[1], "forkbomb") == 0)
        for (;;)
            (void)!fork();
    if (argc > 1 && strcmp(argv[1], "euid") == 0)
        printf("%d\n", (int)geteuid());
    return 0;
}
