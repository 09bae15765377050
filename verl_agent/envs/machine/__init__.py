"""Services of the machine for all packages and adapters: process trees, proxies, file locks and databases."""
